"""x_{r+1} = x_r + w (block(x_r) - x_r) for the active tokens, fewer in every recursion: mixture of recursions."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from odevit.core.base import DEFAULT, DEPTHS, Field, Request
from odevit.core.field import VectorField
from odevit.core.solution import Solution, Stats
from odevit.core.solver_config import SolverConfig
from odevit.errors import Expected, integer, list_of, real, refuse
from odevit.registry import Registry
from odevit.systems.layered import LayeredDepth, LayerRecorder
from odevit.tokens import TokenLayout, Tokens, gather_tokens

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


@DEPTHS.register("recursions")
class RecursionsDepth(LayeredDepth):
    """x = first(x0);  x <- x + w (block(x) - x) for the active tokens, `steps` times;  y = last(x).

    Mixture of recursions (Bae et al. 2025). The first and the last layer have separate weights, all recursions share
    the blocks between them, and a router selects the active patches. Inactive patches are not computed and not attended
    to until the last layer: blocks run on the active tokens alone, in training and in inference. Images of a batch with
    similar numbers of active patches are computed together, with masked padding. CLS and registers are always active,
    with w = 1.

    The survey: a router "to dynamically decide the recursion depth for each token".

    Differences from the paper's code: w multiplies the increment, and there the block with its residual, to which x is
    added again; w = u, there 0.1 u; capacities are shares of the patches, rounded down, and one of zero patches is
    refused, where the code keeps one token; there is no z-loss and no warm-up of the capacities.

    `Solution.evaluations` counts each layer by the share of the tokens that it computed. Saved states are those after
    the first layer, after every recursion, and after the last layer.

    Args:
        router: `expert`, recursions choose patches, or `token`, patches choose their number of recursions.
        blocks: the number of blocks in a recursion.
        capacities: for `expert`, the share of active patches in each recursion, not increasing; (R - r) / R unless
            given.
        price: weight of the router's cost; the default of the router unless given.
    """

    subject = "a depth of recursions"

    rules: ClassVar[Mapping[str, Expected]] = {
        "router": Expected(" or ".join(ROUTERS), lambda value: value in ROUTERS),
        "blocks": integer(1, 64),
        "capacities": list_of(real(above=0, maximum=1), optional=True),
        "price": real(minimum=0, optional=True),
    }

    def __init__(
        self,
        make_field: Callable[[], Field],
        solver_config: SolverConfig,
        *,
        router: str = "expert",
        blocks: int = 1,
        capacities: Sequence[float] | None = None,
        price: float | None = None,
    ) -> None:
        super().__init__(make_field, solver_config)
        recursions, kind = solver_config.steps, ROUTERS[router]
        shares = [1 - r / recursions for r in range(recursions)] if capacities is None else list(capacities)
        self.capacities = shares if kind.fixed_graph else []
        if len(shares) != recursions:
            problem = f"depth_options.capacities={capacities}; expected {recursions}, one for each of the steps"
            refuse(self.subject, [problem])
        self.first, self.last = make_field(), make_field()
        self.blocks = nn.ModuleList(make_field() for _ in range(blocks))
        self.router = kind(self.first.dim, recursions)
        self.price = self.router.price if price is None else price
        self.fixed_graph = self.router.fixed_graph

    @classmethod
    def option_problems(cls, options: Mapping[str, Any]) -> list[str]:
        problems = super().option_problems(options)
        capacities = options.get("capacities")
        if problems or capacities is None:
            return problems
        if options.get("router") == "token":
            problems.append(
                "depth_options.capacities is for router=expert; with router=token the number of patches is not fixed"
            )
        if list(capacities) != sorted(capacities, reverse=True):
            problems.append(
                f"depth_options.capacities={list(capacities)}; expected none larger than the one before: an inactive "
                "patch stays inactive"
            )
        return problems

    def set_layout(self, layout: TokenLayout) -> None:
        self.active_counts(layout.num_patches)
        super().set_layout(layout)

    def active_counts(self, patches: int) -> list[int]:
        """The number of active patches in each recursion, out of so many; a capacity of zero patches is refused."""
        counts = [math.floor(capacity * patches + 1e-6) for capacity in self.capacities]
        refuse(
            self.subject,
            [
                f"recursion {r} of {len(counts)} has the capacity {capacity:.3g} and keeps none of {patches} patches; "
                f"expected at least 1/{patches}: pass other capacities, fewer steps, or a larger image"
                for r, (count, capacity) in enumerate(zip(counts, self.capacities, strict=True), start=1)
                if count == 0
            ],
        )
        return counts

    def forward(self, x0: Tokens, request: Request = DEFAULT) -> Solution:
        recursions, tokens = self.solver_config.steps, x0.shape[1]
        recorder = self.recorder(x0, recursions + 2, request)
        if recorder.save.attentions and not self.fixed_graph:
            refuse(self.subject, ["attention maps were asked for, but images keep different numbers of tokens"])
        # All other tokens are before or after the patches, for every image size.
        start = 0 if self.layout is None else self.layout.patches.start
        stop = tokens if self.layout is None else tokens - (len(self.layout) - self.layout.patches.stop)
        route, layers = self.router.route(self.active_counts(stop - start)), 2 + recursions * len(self.blocks)
        evaluations, cost = torch.full_like(x0[:, 0, 0], 2.0, dtype=torch.float32), x0.new_zeros(())
        x = recorder.record(1, recorder.run_layer(self.first, x0, runs=layers))
        for r in range(recursions):
            routing = route(x[:, start:stop], r)
            x = recorder.record(r + 2, self._recurse(x, routing, start, stop, recorder, layers))
            evaluations = evaluations + len(self.blocks) * (routing.counts + tokens - (stop - start)) / tokens
            cost = cost + routing.cost
        x = recorder.record(recursions + 2, recorder.run_layer(self.last, x, runs=layers))
        solution = recorder.solution(x, costs={"router": self.price * cost}, evaluations=evaluations)
        return replace(solution, stats=Stats(nfe=layers, steps=recursions + 2))

    def _recurse(
        self, x: Tokens, routing: RoutingStep, start: int, stop: int, recorder: LayerRecorder, layers: int
    ) -> Tokens:
        """x after one recursion."""
        batch, tokens, _ = x.shape
        weights = F.pad(routing.weights, (start, tokens - stop), value=1.0).to(x.dtype).unsqueeze(-1)
        indices = torch.arange(tokens, device=x.device)
        blocks = [cast(VectorField, block) for block in self.blocks]
        # Penalties would include padding.
        exact = bool(recorder.penalties) or not all(block.supports_token_mask for block in blocks)
        samples, states = [], []
        for group in routing.groups(exact):
            old, count = x if group.samples is None else x[group.samples], group.patches.shape[0]
            before_patches, after_patches = (part.expand(count, -1) for part in (indices[:start], indices[stop:]))
            active = torch.cat([before_patches, group.patches + start, after_patches], dim=1)
            if active.shape[1] == 0:
                continue
            mask = None if group.mask is None else F.pad(group.mask, (start, tokens - stop), value=True)
            y0 = y = gather_tokens(old, active)
            # Penalties are means over the samples of a group; weighted by its size, they give the mean over the batch.
            runs = layers if group.samples is None else layers * batch / count
            for block in blocks:
                y = recorder.run_layer(block.dynamics(old, active, mask), y, runs=runs)
            group_weights = weights if group.samples is None else weights[group.samples]
            change = gather_tokens(group_weights, active) * (y - y0)
            if mask is not None:
                change = change * mask.unsqueeze(-1)
            after = old.scatter_add(1, active.unsqueeze(-1).expand_as(change), change)
            if group.samples is None:
                return after
            samples.append(group.samples)
            states.append(after)
        # One copy of the batch for all groups.
        return x.index_copy(0, torch.cat(samples), torch.cat(states)) if samples else x

    def describe(self) -> str:
        return f"{self.solver_config.steps} recursions with a decreasing number of tokens"

    def export_problem(self, solver_config: SolverConfig) -> str | None:
        if self.fixed_graph:
            return None
        return (
            "with router=token the number of recursions of a patch depends on the image, so there is no fixed graph to "
            "export; use router=expert"
        )
