"""x_{n+1} = step(x_n), n = 0..N-1: the loop of the fixed-step solvers.

Written by hand, where libraries for ODEs exist, because it has to compile, export, be captured in a CUDA graph and be
recomputed in stretches, and because splittings need the components of a field one by one.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor
from torch.utils.checkpoint import checkpoint

from odevit.field.dynamics import Dynamics
from odevit.solver.method import FixedStepSolver
from odevit.solver.penalty import Penalty, Step
from odevit.solver.solution import Save, Solution, Stats
from odevit.solver.stop import Departures

BRANCHING = 4
"""Into how many stretches checkpointing cuts a stretch of steps, and each of those again.

Memory then grows with log4(N) states, and a step is computed log4(N) times. Cutting once into N single steps computes
each step only twice, but keeps N states alive: for small fields that is most of the memory it should have saved.
"""


class Stretch(NamedTuple):
    """What a stretch of steps hands on: the state, the sums of running costs, and what is kept of it."""

    x: Tensor
    costs: tuple[Tensor, ...]
    states: tuple[Tensor, ...]
    attentions: tuple[Tensor, ...]


@dataclass
class FixedStepLoop:
    """x_{n+1} = step(x_n) over a uniform grid of N steps from t0 to t1."""

    dynamics: Dynamics
    solver: FixedStepSolver
    steps: int
    t0: float
    t1: float
    save: Save
    penalties: Mapping[str, Penalty]
    checkpointing: bool
    departures: Departures | None

    def __post_init__(self) -> None:
        # Decided once for a whole solve, not at every step.
        self._h = (self.t1 - self.t0) / self.steps
        self._saved = self.save.chosen(self.steps)
        self._running = {name: penalty for name, penalty in self.penalties.items() if penalty.is_running()}
        self._watched = self.save.attentions or any(penalty.needs_attentions for penalty in self._running.values())

    def run(self, x0: Tensor) -> Solution:
        evaluations = self.solver.evaluations(len(self.dynamics.components))
        costs = tuple(x0.new_zeros(()) for _ in self._running)
        end = self._walk(x0, costs, 0, self.steps, self.checkpointing)
        if self.departures is not None:
            taken = self.departures.taken
            most = int(taken.max())
            return Solution(
                state=self.departures.final,
                time=self._time(most),
                stats=Stats(nfe=most * evaluations, steps=most),
                evaluations=taken * evaluations,
                stop_times=taken * self._h,
            )
        return Solution(
            state=end.x,
            time=self.t1,
            stats=Stats(nfe=self.steps * evaluations, steps=self.steps),
            states=self.save.kept([x0] if 0 in self._saved else []) + end.states,
            times=tuple(self._time(n) for n in sorted(self._saved)),
            attentions=end.attentions,
            penalties=self._totals(end),
        )

    def _walk(self, x: Tensor, costs: tuple[Tensor, ...], first: int, last: int, recompute: bool) -> Stretch:
        """Steps `first` to `last`; recomputed in the backward pass, they are cut into shorter stretches of the same."""
        states: list[Tensor] = []
        attentions: list[Tensor] = []
        if recompute:
            pieces = min(BRANCHING, last - first)
            edges = [first + (last - first) * i // pieces for i in range(pieces + 1)]
            # The dropout masks of the trajectory were drawn before it: only a penalty can be random in a step.
            noisy = any(penalty.draws_noise for penalty in self._running.values())
            for start, end in itertools.pairwise(edges):
                # The state is an argument of its own: inside a tuple checkpoint would keep every one of them alive.
                part = checkpoint(
                    self._walk, x, costs, start, end, end - start > 1, use_reentrant=False, preserve_rng_state=noisy
                )
                x, costs = part.x, part.costs
                states.extend(part.states)
                attentions.extend(part.attentions)
            return Stretch(x, costs, tuple(states), tuple(attentions))

        maps: list[Tensor] = []
        dynamics = self.dynamics.observed_by(maps.append) if self._watched else self.dynamics
        for n in range(first, last):
            t, before = self._time(n), x
            maps.clear()
            x = self.solver.step(dynamics, x, t, self._h).to(x.dtype)
            if self._running:
                step = Step(self.dynamics, t, self._h, before, x, tuple(maps))
                costs = tuple(
                    cost + penalty.running(step) / self.steps
                    for cost, penalty in zip(costs, self._running.values(), strict=True)
                )
            if n + 1 in self._saved:
                states.extend(self.save.kept([x]))
            if self.save.attentions:
                attentions.extend(self.save.kept(maps))
            if self.departures is not None:
                x, dynamics = self.departures.after(n + 1, before, x, dynamics)
                if len(x) == 0:
                    break
        return Stretch(x, costs, tuple(states), tuple(attentions))

    def _totals(self, end: Stretch) -> dict[str, Tensor]:
        """Every penalty's cost along the way and at the end, together."""
        running = dict(zip(self._running, end.costs, strict=True))
        totals = {}
        for name, penalty in self.penalties.items():
            totals[name] = running.get(name, end.x.new_zeros(()))
            if penalty.is_terminal():
                totals[name] = totals[name] + penalty.terminal(self.dynamics, end.x, self.t1)
        return totals

    def _time(self, n: int) -> float:
        return self.t0 + (self.t1 - self.t0) * n / self.steps
