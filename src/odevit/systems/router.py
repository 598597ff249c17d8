"""score(x): which patches take part in a recursion, and with which weight."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from odevit.registry import Registry
from odevit.tokens import Tokens

ROUTERS: Registry[type[Router]] = Registry("router")
MAX_GROUPS = 8
"""The largest number of groups of images in a recursion, besides the group without patches. At most an eighth of the
patches are padding."""


@dataclass(frozen=True)
class Group:
    """Images that are computed together in a recursion.

    Args:
        samples: their indices in the batch; None is the whole batch.
        patches: the indices of their active patches [samples, k].
        mask: False for padding, where an image has fewer active patches than others [samples, k]; None is no padding.
    """

    samples: Tensor | None
    patches: Tensor
    mask: Tensor | None = None


@dataclass(frozen=True)
class RoutingStep:
    """The active patches of a recursion.

    Args:
        groups: groups(exact) makes groups of images; if exact, all images of a group have equally many active patches.
        counts: the number of active patches of each image [batch].
        weights: w of every patch [batch, patch].
        cost: the loss of the router, before its weight.
    """

    groups: Callable[[bool], Iterable[Group]]
    counts: Tensor
    weights: Tensor
    cost: Tensor


class Router(nn.Module, ABC):
    """Scores [recursion] of every patch, a linear map of the patch, and a rule that selects active patches."""

    price: ClassVar[float]
    """The default weight of its cost."""
    fixed_graph: ClassVar[bool] = True
    """Whether the numbers of active patches do not depend on the data."""

    def __init__(self, dim: int, recursions: int) -> None:
        super().__init__()
        self.scores = nn.Linear(dim, recursions, bias=False)

    @abstractmethod
    def route(self, capacities: Sequence[int]) -> Callable[[Tokens, int], RoutingStep]:
        """A function (patches, recursion) -> RoutingStep for a pass; `capacities` are the numbers of active patches."""


@ROUTERS.register("expert")
class ExpertChoice(Router):
    """Every recursion takes the k patches with the largest u = sigmoid(v_r x) that the one before took; w = u.

    The cost is the cross entropy between u and whether a patch was taken, the mean over the candidates, summed over
    recursions. The selection is within an image, so that inference selects as training does.
    """

    price = 1e-3

    def route(self, capacities: Sequence[int]) -> Callable[[Tokens, int], RoutingStep]:
        active: Tensor | None = None

        def routing_step(x: Tokens, recursion: int) -> RoutingStep:
            nonlocal active
            scores = F.linear(x, self.scores.weight[recursion]).float()
            if active is None:
                active = torch.arange(x.shape[1], device=x.device).expand(x.shape[0], -1)
            candidates = scores.gather(1, active)
            best = candidates.topk(capacities[recursion], dim=1).indices.sort(dim=1).values  # in the order of the image
            target = torch.zeros_like(candidates).scatter(1, best, 1.0)
            active = active.gather(1, best)
            group, counts = Group(None, active), torch.full_like(active[:, 0], active.shape[1])
            cost = F.binary_cross_entropy_with_logits(candidates, target)
            return RoutingStep(lambda exact: [group], counts, scores.sigmoid(), cost)

        return routing_step


@ROUTERS.register("token")
class TokenChoice(Router):
    """The depth of a patch is argmax_i p_i, p = softmax(V x), at the first recursion; w = 1, and p_i at its last.

    The cost is R sum_i f_i mean p_i, f_i the share of patches with depth i; its minimum, 1, is an even use of depths.
    """

    price = 0.1
    fixed_graph = False

    def route(self, capacities: Sequence[int]) -> Callable[[Tokens, int], RoutingStep]:
        depth = gate = torch.empty(0)

        def routing_step(x: Tokens, recursion: int) -> RoutingStep:
            nonlocal depth, gate
            cost = x.new_zeros(())
            if recursion == 0:
                p = self.scores(x).float().softmax(dim=-1)
                gate, depth = p.max(dim=-1)
                shares = F.one_hot(depth, p.shape[-1]).float().mean(dim=(0, 1))
                cost = p.shape[-1] * (shares * p.mean(dim=(0, 1))).sum()
            active = depth >= recursion
            weights = torch.where(depth == recursion, gate, 1.0)
            return RoutingStep(lambda exact: group_by_count(active, exact), active.sum(dim=1), weights, cost)

        return routing_step


def group_by_count(active: Tensor, exact: bool = False) -> Iterable[Group]:
    """[batch, patch] -> groups of images with about, or if exact with exactly, equally many active patches.

    A group for each number of patches would start too many kernels. Images without active patches have a group of
    their own: attention without keys is 0 or NaN, depending on its kernel.
    """
    counts = active.sum(dim=1)
    # Active patches first, in the order of the image.
    order = active.to(torch.uint8).argsort(dim=1, descending=True, stable=True)
    ascending = counts.argsort(stable=True)
    sizes: list[int] = counts[ascending].tolist()  # the only place that waits for the device
    end = len(sizes)
    while end:
        largest = sizes[end - 1]
        smallest = largest if exact else max(largest - active.shape[1] // MAX_GROUPS, min(largest, 1))
        begin = bisect_left(sizes, smallest, hi=end)
        samples = ascending[begin:end]
        mask = torch.arange(largest, device=active.device) < counts[samples, None]
        yield Group(samples, order[samples, :largest], None if sizes[begin] == largest else mask)
        end = begin
