"""x_{n+1} = step(x_n), n = 0..N-1: the loop of the fixed-step solvers.

Written by hand, where libraries for ODEs exist, because it has to compile, export, be captured in a CUDA graph and be
recomputed in stretches, and because splittings need the components of a field one by one.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from odevit.core.dynamics import Dynamics
from odevit.core.grid import Grid, edges, lengths
from odevit.core.solution import SaveAt, Solution, Stats
from odevit.core.solver import FixedStepSolver, History
from odevit.solvers.early_exit import ActiveBatch, StopState
from odevit.solvers.penalties import Penalty, Step

BRANCHING = 4
"""Into how many stretches checkpointing cuts a stretch of steps, and each of those again.

Memory then grows with log4(N) states, and a step is computed log4(N) times. Cutting once into N single steps computes
each step only twice, but keeps N states alive: for small fields that is most of the memory it should have saved.
"""


Recompute = bool | Mapping[str, Any]
"""Whether steps are computed again in the backward pass; or that they are, with these options of torch's checkpoint."""


class Stretch(NamedTuple):
    """What a stretch of steps hands on: the state, the sums of running costs, and what is kept of it."""

    x: Tensor
    costs: tuple[Tensor, ...]
    states: tuple[Tensor, ...]
    attentions: tuple[Tensor, ...]
    history: History


@dataclass
class FixedStepLoop:
    """x_{n+1} = step(x_n) over the N steps between the times of `grid`, from t0 to t1."""

    dynamics: Dynamics
    solver: FixedStepSolver
    steps: int
    t0: float
    t1: float
    save: SaveAt
    penalties: Mapping[str, Penalty]
    checkpointing: Recompute
    active: ActiveBatch | None
    grid: Grid = "uniform"

    def __post_init__(self) -> None:
        # Decided once for a whole solve, not at every step.
        self._times = edges(self.grid, self.steps, self.t0, self.t1)
        self._lengths = lengths(self.grid, self._times)
        middles = [(early + late) / 2 for early, late in itertools.pairwise(self._times)]
        self._fresh = {0} | {
            n + 1
            for n, (a, b) in enumerate(itertools.pairwise(middles))
            if self.solver.restart and self.dynamics.has_kink(a, b)
        }
        self._saved = self.save.chosen(self.steps)
        self._running = {name: penalty for name, penalty in self.penalties.items() if penalty.is_running()}
        self._watched = self.save.attentions or any(penalty.needs_attentions for penalty in self._running.values())

    def run(self, x0: Tensor) -> Solution:
        per_step, again = self.solver.evaluations(len(self.dynamics.components)), self.solver.restart
        # What has come to rest is not asked where it goes, unless somebody watches.
        moves = [self._watched or not self.dynamics.is_static(a, b) for a, b in itertools.pairwise(self._times)]
        spent = list(
            itertools.accumulate(moving * (per_step + again * (n in self._fresh)) for n, moving in enumerate(moves))
        )
        costs = tuple(x0.new_zeros(()) for _ in self._running)
        end = self._walk(x0, costs, 0, self.steps, bool(self.checkpointing))
        if self.active is not None:
            taken = self.active.taken
            most = int(taken.max())
            return Solution(
                state=self.active.final,
                time=self._times[most],
                stats=Stats(nfe=spent[most - 1], steps=most),
                evaluations=taken.new_tensor([0, *spent])[taken],
                stop_times=torch.tensor(self._times, device=taken.device)[taken] - self.t0,
            )
        return Solution(
            state=end.x,
            time=self.t1,
            stats=Stats(nfe=spent[-1], steps=self.steps),
            states=self.save.kept([x0] if 0 in self._saved else []) + end.states,
            times=tuple(self._times[n] for n in sorted(self._saved)),
            spent=tuple([0, *spent][n] for n in sorted(self._saved)),
            attentions=end.attentions,
            penalties=self._totals(end),
        )

    def _walk(
        self,
        x: Tensor,
        costs: tuple[Tensor, ...],
        first: int,
        last: int,
        recompute: bool,
        since: tuple[float, ...] = (),
        *slopes: Tensor,
    ) -> Stretch:
        """Steps `first` to `last`; recomputed in the backward pass, they are cut into shorter stretches of the same."""
        states: list[Tensor] = []
        attentions: list[Tensor] = []
        history: History = tuple(zip(since, slopes, strict=True))
        if recompute:
            pieces = min(BRANCHING, last - first)
            cuts = [first + (last - first) * i // pieces for i in range(pieces + 1)]
            # The dropout masks of the trajectory were drawn before it: only a penalty can be random in a step.
            noisy = any(penalty.draws_noise for penalty in self._running.values())
            options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": noisy}
            options |= self.checkpointing if isinstance(self.checkpointing, Mapping) else {}
            for start, end in itertools.pairwise(cuts):
                # States and slopes are arguments of their own: in a tuple checkpoint would keep every one alive.
                inner = (end - start > 1, tuple(time for time, _ in history), *(slope for _, slope in history))
                part = checkpoint(self._walk, x, costs, start, end, *inner, **options)
                x, costs, history = part.x, part.costs, part.past
                states.extend(part.states)
                attentions.extend(part.attentions)
            return Stretch(x, costs, tuple(states), tuple(attentions), history)

        maps: list[Tensor] = []
        dynamics = self.dynamics.with_attention_hook(maps.append) if self._watched else self.dynamics
        for n in range(first, last):
            t, h, before = self._times[n], self._lengths[n], x
            maps.clear()
            here = dynamics.for_step(t, self._times[n + 1])
            after, history = self.solver.advance(here, x, t, h, () if n in self._fresh else history)
            x = after.to(x.dtype)
            if self._running:
                step = Step(here.with_attention_hook(self.dynamics.observer), t, h, before, x, tuple(maps))
                share = h / (self.t1 - self.t0)
                costs = tuple(
                    cost + share * penalty.running(step)
                    for cost, penalty in zip(costs, self._running.values(), strict=True)
                )
            if n + 1 in self._saved:
                states.extend(self.save.kept([x]))
            if self.save.attentions:
                attentions.extend(self.save.kept(maps))
            if self.active is not None:
                moment = StopState(h, before, x)
                x, dynamics, history = self.active.after(n + 1, n + 1 == self.steps, moment, dynamics, history)
                if len(x) == 0:
                    break
        return Stretch(x, costs, tuple(states), tuple(attentions), history)

    def _totals(self, end: Stretch) -> dict[str, Tensor]:
        """Every penalty's cost along the way and at the end, together."""
        running = dict(zip(self._running, end.costs, strict=True))
        totals = {}
        for name, penalty in self.penalties.items():
            totals[name] = running.get(name, end.x.new_zeros(()))
            if penalty.is_terminal():
                totals[name] = totals[name] + penalty.terminal(self.dynamics, end.x, self.t1)
        return totals
