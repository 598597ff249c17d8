"""x_{r+1} = x_r + w (block(x_r) - x_r) for the tokens that go on: fewer of them at every turn."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from odevit.core.base import DEFAULT, DEPTHS, Field, Request
from odevit.core.field import VectorField
from odevit.core.solution import Solution, Stats
from odevit.core.solver_config import SolverConfig
from odevit.errors import Expected, integer, list_of, real, refuse
from odevit.systems.layered import LayeredDepth, LayerRecorder
from odevit.systems.router import ROUTERS, RoutingStep
from odevit.tokens import TokenLayout, Tokens, gather_tokens


@DEPTHS.register("recursions")
class RecursionsDepth(LayeredDepth):
    """x = first(x0);  x <- x + w (block(x) - x) for the tokens that go on, `steps` times;  y = last(x).

    Mixture of recursions (Bae et al. 2025). The first and the last layer have weights of their own, the blocks between
    them are shared by all recursions, and a router decides which patches go on. The others are neither computed nor
    seen until the last layer: blocks run on the tokens that are left, in training and in inference. Where images of a
    batch keep different numbers of them, those that keep nearly as many go together, filled up with tokens that nobody
    sees. CLS and registers always go on, with w = 1.

    The survey: a router "to dynamically decide the recursion depth for each token".

    What differs: w weighs the increment, where the paper's code weighs the block with its residual and adds x again;
    w = u, where it has 0.1 u; capacities are shares of the patches, rounded down, and one that keeps none is refused,
    where it keeps one token; a router has no z-loss, and capacities do not warm up.

    `Solution.evaluations` counts layers by the share of the tokens that went through them. States that are kept are
    those after the first layer, after every recursion, and after the last layer.

    Args:
        router: `expert`, recursions choose patches, or `token`, patches choose how many recursions they take.
        blocks: how many blocks a recursion has.
        capacities: share of the patches that goes on, for each recursion, never more than before; (R - r) / R unless
            given. For `expert`.
        price: weight of the router's cost; the router's own unless given.
    """

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
        turns, kind = solver_config.steps, ROUTERS[router]
        shares = [1 - r / turns for r in range(turns)] if capacities is None else list(capacities)
        self.capacities = shares if kind.fixed_graph else []
        if len(shares) != turns:
            refuse(
                self.subject, [f"depth_options.capacities={capacities}; expected {turns}, one for each of the steps"]
            )
        self.first, self.last = make_field(), make_field()
        self.blocks = nn.ModuleList(make_field() for _ in range(blocks))
        self.router = kind(self.first.dim, turns)
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
                "depth_options.capacities is for router=expert; with router=token patches choose themselves"
            )
        if list(capacities) != sorted(capacities, reverse=True):
            problems.append(
                f"depth_options.capacities={list(capacities)}; expected none larger than the one before: a patch that "
                "has left does not come back"
            )
        return problems

    def set_layout(self, layout: TokenLayout) -> None:
        self.kept(layout.num_patches)
        super().set_layout(layout)

    def kept(self, patches: int) -> list[int]:
        """How many of so many patches go on, for each recursion; a capacity that keeps none is refused."""
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
        turns, tokens = self.solver_config.steps, x0.shape[1]
        recorder = self.recorder(x0, turns + 2, request)
        if recorder.keep.attentions and not self.fixed_graph:
            refuse(self.subject, ["attention maps were asked for, but images keep different numbers of tokens"])
        # Whatever is no patch surrounds the patches, for every size of image.
        start = 0 if self.layout is None else self.layout.patches.start
        stop = tokens if self.layout is None else tokens - (len(self.layout) - self.layout.patches.stop)
        route, layers = self.router.route(self.kept(stop - start)), 2 + turns * len(self.blocks)
        worth, cost = torch.full_like(x0[:, 0, 0], 2.0, dtype=torch.float32), x0.new_zeros(())
        x = recorder.record(1, recorder.run_layer(self.first, x0, shares=layers))
        for r in range(turns):
            turn = route(x[:, start:stop], r)
            x, share = self._recurse(x, turn, start, stop, recorder, layers)
            worth, cost = worth + share, cost + turn.cost
            recorder.record(r + 2, x)
        x = recorder.record(turns + 2, recorder.run_layer(self.last, x, shares=layers))
        solution = recorder.solution(x, costs={"router": self.price * cost}, evaluations=worth)
        return replace(solution, stats=Stats(nfe=layers, steps=turns + 2))

    def _recurse(
        self, x: Tokens, turn: RoutingStep, start: int, stop: int, recorder: LayerRecorder, layers: int
    ) -> tuple[Tokens, Tensor]:
        """x after one recursion, and how much of the blocks each sample went through."""
        batch, tokens, _ = x.shape
        weights = F.pad(turn.weights, (start, tokens - stop), value=1.0).to(x.dtype).unsqueeze(-1)
        places = torch.arange(tokens, device=x.device)
        others = tokens - (stop - start)
        worth = len(self.blocks) * (turn.counts + others) / tokens
        blocks = [cast(VectorField, block) for block in self.blocks]
        # Penalties look at every token, those that fill up a group included.
        exact = bool(recorder.penalties) or not all(block.supports_token_mask for block in blocks)
        who, states = [], []
        for group in turn.groups(exact):
            every = slice(None) if group.samples is None else group.samples
            old, count = x[every], group.patches.shape[0]
            around = places[:start].expand(count, -1), places[stop:].expand(count, -1)
            going = torch.cat([around[0], group.patches + start, around[1]], dim=1)
            if going.shape[1] == 0:
                continue
            seen = None if group.seen is None else F.pad(group.seen, (start, tokens - stop), value=True)
            before = y = gather_tokens(old, going)
            # Penalties are means over the samples of a group; all groups together are one over the batch.
            shares = layers if group.samples is None else layers * batch / count
            for block in blocks:
                y = recorder.run_layer(block.dynamics(old, going, seen), y, shares=shares)
            change = gather_tokens(weights[every], going) * (y - before)
            if seen is not None:
                change = change * seen.unsqueeze(-1)
            moved = old.scatter_add(1, going.unsqueeze(-1).expand_as(change), change)
            if group.samples is None:
                return moved, worth
            who.append(group.samples)
            states.append(moved)
        # Put back together at once: one by one, every group would copy the whole batch.
        return (x.index_copy(0, torch.cat(who), torch.cat(states)) if who else x), worth

    @property
    def subject(self) -> str:
        return "a depth of recursions"

    def describe(self) -> str:
        return f"{self.solver_config.steps} recursions of fewer and fewer tokens"

    def export_problem(self, solver_config: SolverConfig) -> str | None:
        if self.fixed_graph:
            return None
        return (
            "patches choose how often they are computed, so that there is no fixed graph to export; router=expert has"
        )
