"""x_{n+1} = step(x_n), n = 0..N-1: the loop of the fixed-step solvers."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor
from torch.utils.checkpoint import checkpoint

from odevit.field.dynamics import Dynamics
from odevit.solver.base import FixedStepSolver
from odevit.solver.penalty import Penalty, Step
from odevit.solver.save import Save
from odevit.solver.solution import Solution, Stats

BRANCHING = 4
"""Into how many stretches checkpointing cuts a stretch of steps, and each of those again.

Memory then grows with log4(N) states, and a step is computed log4(N) times. Cutting once into N single steps computes
each step only twice, but keeps N states alive: for small fields that is most of the memory it should have saved.
"""


class Stretch(NamedTuple):
    """What a stretch of steps hands on: the state, the penalties so far, and what was asked to be kept."""

    x: Tensor
    penalties: tuple[Tensor, ...]
    states: tuple[Tensor, ...]
    attentions: tuple[Tensor, ...]


@dataclass(frozen=True)
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

    def run(self, x0: Tensor) -> Solution:
        """Integrate from `x0`."""
        zeros = tuple(x0.new_zeros(()) for _ in self.penalties)
        chosen = sorted(self.save.chosen(self.steps))
        integrate = self._recomputed if self.checkpointing else self._steps
        out = integrate(x0, zeros, 0, self.steps)
        start = (self._kept(x0),) if 0 in chosen else ()
        return Solution(
            state=out.x,
            time=self.t1,
            stats=Stats(
                nfe=self.steps * self.solver.evaluations(len(self.dynamics.components)),
                steps=self.steps,
            ),
            states=start + out.states,
            times=tuple(self._time(n) for n in chosen),
            attentions=out.attentions,
            penalties=dict(zip(self.penalties, out.penalties, strict=True)),
        )

    def _stretch(self, x: Tensor, penalties: tuple[Tensor, ...], first: int, last: int) -> Stretch:
        """Steps `first` to `last`; whoever calls it recomputes it as a whole, so a single step needs no more cuts."""
        if last - first == 1:
            return self._step(x, penalties, first)
        return self._recomputed(x, penalties, first, last)

    def _recomputed(self, x: Tensor, penalties: tuple[Tensor, ...], first: int, last: int) -> Stretch:
        """Steps `first` to `last`, cut into shorter stretches that are recomputed in the backward pass."""
        states: tuple[Tensor, ...] = ()
        attentions: tuple[Tensor, ...] = ()
        for begin, end in _cut(first, last):
            # No randomness inside a step: the dropout masks of the trajectory were drawn before it.
            out = checkpoint(self._stretch, x, penalties, begin, end, use_reentrant=False, preserve_rng_state=False)
            x, penalties = out.x, out.penalties
            states, attentions = states + out.states, attentions + out.attentions
        return Stretch(x, penalties, states, attentions)

    def _steps(self, x: Tensor, penalties: tuple[Tensor, ...], first: int, last: int) -> Stretch:
        states: list[Tensor] = []
        attentions: list[Tensor] = []
        for n in range(first, last):
            out = self._step(x, penalties, n)
            x, penalties = out.x, out.penalties
            states.extend(out.states)
            attentions.extend(out.attentions)
        return Stretch(x, penalties, tuple(states), tuple(attentions))

    def _step(self, x: Tensor, penalties: tuple[Tensor, ...], n: int) -> Stretch:
        t, h = self._time(n), (self.t1 - self.t0) / self.steps
        maps: list[Tensor] = []
        watched = self.save.attentions or any(penalty.needs_attentions for penalty in self.penalties.values())
        dynamics = self.dynamics.observed_by(maps.append) if watched else self.dynamics
        after = self.solver.step(dynamics, x, t, h).to(x.dtype)
        if self.penalties:
            step = Step(self.dynamics, t, h, x, after, tuple(maps), self.steps - n - 1, self.steps)
            share = 1.0 / self.steps
            penalties = tuple(
                total + share * penalty(step) for total, penalty in zip(penalties, self.penalties.values(), strict=True)
            )
        return Stretch(
            after,
            penalties,
            (self._kept(after),) if n + 1 in self.save.chosen(self.steps) else (),
            tuple(self._kept(each) for each in maps) if self.save.attentions else (),
        )

    def _time(self, n: int) -> float:
        return self.t0 + (self.t1 - self.t0) * n / self.steps

    def _kept(self, tensor: Tensor) -> Tensor:
        return tensor.detach() if self.save.detach else tensor


def _cut(first: int, last: int) -> list[tuple[int, int]]:
    """`BRANCHING` nearly equal stretches of first..last."""
    pieces = min(BRANCHING, last - first)
    edges = [first + (last - first) * i // pieces for i in range(pieces + 1)]
    return list(itertools.pairwise(edges))
