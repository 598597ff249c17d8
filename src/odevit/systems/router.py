"""score(x) -> who goes on: which patches take part in a recursion, and how much of it they take over."""

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
GROUPS = 8
"""Images go through a recursion in so many groups at most, and those without a patch in one more: an eighth of the
patches may be computed for nothing."""


@dataclass(frozen=True)
class Group:
    """Images that go through a recursion together.

    Args:
        samples: which of the batch; None is all of them.
        patches: the numbers of their patches that go on [samples, k].
        seen: which of these do [samples, k], where some images have fewer: the others fill up. None is all of them.
    """

    samples: Tensor | None
    patches: Tensor
    seen: Tensor | None = None


@dataclass(frozen=True)
class RoutingStep:
    """Who takes part in a recursion, and how much the change of each patch counts.

    Args:
        groups: makes the groups in which images go; exact, those of one group keep equally many patches.
        counts: how many patches of every image go on [batch].
        weights: w of every patch [batch, patch].
        cost: what the router adds to the loss, before its weight.
    """

    groups: Callable[[bool], Iterable[Group]]
    counts: Tensor
    weights: Tensor
    cost: Tensor


class Router(nn.Module, ABC):
    """Scores [recursion] of every patch, a linear map of it, and what follows from them."""

    price: ClassVar[float]
    """The weight of its cost, unless another is given."""
    fixed_graph: ClassVar[bool] = True
    """Whether it is known beforehand how many tokens go on."""

    def __init__(self, dim: int, recursions: int) -> None:
        super().__init__()
        self.scores = nn.Linear(dim, recursions, bias=False)

    @abstractmethod
    def route(self, capacities: Sequence[int]) -> Callable[[Tokens, int], RoutingStep]:
        """(patches, number of the recursion) -> turn, for one pass; `capacities` are how many patches go on at most."""


@ROUTERS.register("expert")
class ExpertChoice(Router):
    """Every recursion takes the k patches with the highest u = sigmoid(v_r x), among those of the one before; w = u.

    The cost is the cross entropy of u with having been taken, the mean over those who might have been, summed over the
    recursions. An image is seen whole, so that inference chooses as training did.
    """

    price = 1e-3

    def route(self, capacities: Sequence[int]) -> Callable[[Tokens, int], RoutingStep]:
        taken: Tensor | None = None

        def routing_step(x: Tokens, number: int) -> RoutingStep:
            nonlocal taken
            scores = F.linear(x, self.scores.weight[number]).float()
            if taken is None:
                taken = torch.arange(x.shape[1], device=x.device).expand(x.shape[0], -1)
            candidates = scores.gather(1, taken)
            best = candidates.topk(capacities[number], dim=1).indices.sort(dim=1).values  # as they stand in the image
            target = torch.zeros_like(candidates).scatter(1, best, 1.0)
            taken = taken.gather(1, best)
            group, counts = Group(None, taken), torch.full_like(taken[:, 0], taken.shape[1])
            cost = F.binary_cross_entropy_with_logits(candidates, target)
            return RoutingStep(lambda exact: [group], counts, scores.sigmoid(), cost)

        return routing_step


@ROUTERS.register("token")
class TokenChoice(Router):
    """Every patch chooses its depth at the first recursion, argmax_i p_i, p = softmax(V x); w = 1, at its last w = p_i.

    The cost is R sum_i f_i mean p_i, f_i the share of patches with depth i: the least, 1, where depths are used evenly.
    """

    price = 0.1
    fixed_graph = False

    def route(self, capacities: Sequence[int]) -> Callable[[Tokens, int], RoutingStep]:
        depth = gate = torch.empty(0)

        def routing_step(x: Tokens, number: int) -> RoutingStep:
            nonlocal depth, gate
            cost = x.new_zeros(())
            if number == 0:
                p = self.scores(x).float().softmax(dim=-1)
                gate, depth = p.max(dim=-1)
                shares = F.one_hot(depth, p.shape[-1]).float().mean(dim=(0, 1))
                cost = p.shape[-1] * (shares * p.mean(dim=(0, 1))).sum()
            going = depth >= number
            weights = torch.where(depth == number, gate, 1.0)
            return RoutingStep(lambda exact: alike(going, exact), going.sum(dim=1), weights, cost)

        return routing_step


def alike(going: Tensor, exact: bool = False) -> Iterable[Group]:
    """[batch, patch] -> groups of images of which about equally many patches go on; exactly as many, if that is asked.

    A batch has many different numbers of patches, and a group for each would start its kernels again and again. Images
    of which no patch goes on have a group of their own: attention that sees nothing is 0 or nan, as its kernel likes.
    """
    counts = going.sum(dim=1)
    # Those that go on come first, as they stand in the image.
    order = going.to(torch.uint8).argsort(dim=1, descending=True, stable=True)
    ascending = counts.argsort(stable=True)
    sizes: list[int] = counts[ascending].tolist()  # the one time that this waits for the device
    end = len(sizes)
    while end:
        largest = sizes[end - 1]
        least = largest if exact else max(largest - going.shape[1] // GROUPS, min(largest, 1))
        begin = bisect_left(sizes, least, hi=end)
        samples = ascending[begin:end]
        seen = torch.arange(largest, device=going.device) < counts[samples, None]
        yield Group(samples, order[samples, :largest], None if sizes[begin] == largest else seen)
        end = begin
