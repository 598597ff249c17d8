"""(solver, N, T) ~ uniform(solvers x steps x horizons), drawn once per batch: answers that do not hang on the way.

Or one of a list of complete ways, each written SOLVER:STEPS:HORIZONS.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from odevit.core.base import SOLVERS, FixedStepSolver
from odevit.core.solver_config import SolverConfig
from odevit.errors import ConfigError, unknown_name

OWN = "own"
WRITTEN = re.compile(r"(own|\w+(?=:))(?::([1-9]\d*|\d+(?:\.\d+)?(?=x))(x?)(?::(\d+(?:\.\d+)?))?)?")


class ConfigSampler(Protocol):
    """Gives the way of each batch."""

    def draw(self, update: int) -> SolverConfig:
        """The way of this batch."""

    @property
    def configs(self) -> list[SolverConfig]:
        """Everything that can be drawn."""


@dataclass(frozen=True)
class ListSampler:
    """One of a list of ways, drawn uniformly: a pure function of (seed, update)."""

    listed: tuple[SolverConfig, ...]
    seed: int = 0

    def draw(self, update: int) -> SolverConfig:
        return random.Random(f"{self.seed}:{update}").choice(self.listed)

    @property
    def configs(self) -> list[SolverConfig]:
        return list(dict.fromkeys(self.listed))


def parse_solver_config(text: str, own: SolverConfig) -> SolverConfig:
    """The way that SOLVER:STEPS:HORIZONS names, for a model whose own way is `own`.

    STEPS lead to the model's own horizon: a number of them, or a multiple of its own number, `2x`. HORIZONS, 1 unless
    given, carries the same steps on beyond it. `own` is its own way, or stands for its own solver.
    """
    match = WRITTEN.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text!r} is no way; expected SOLVER:STEPS, such as lie_trotter:12, or rk4:2x for twice the model's own "
            "steps, and lie_trotter:12:1.5 to go on to 1.5 of its horizons"
        )
    solver, steps, times, horizons = match.groups()
    fixed = [OWN, *(name for name, kind in SOLVERS.items() if issubclass(kind, FixedStepSolver))]
    if solver not in fixed:
        raise ValueError(f"{text!r}: {unknown_name('solver', solver, fixed)}")
    if steps is not None and float(steps) == 0:
        raise ValueError(f"{text!r} goes nowhere; expected at least one step")
    if float(horizons or 1) < 1:
        raise ValueError(f"{text!r} ends before the model's own horizon; expected a multiple of it, at least 1")
    count = own.steps if steps is None else max(1, round(float(steps) * (own.steps if times else 1)))
    return own.replace(None if solver == OWN else solver, count).stretched(float(horizons or 1))


@dataclass(frozen=True)
class SolverSampler:
    """N drawn uniformly from steps, T from the horizons with T / N <= longest_step, the solver from solvers.

    An entry that is listed twice is drawn twice as often. A share of the batches takes the model's own way. For the
    first `coarse` updates nothing is drawn: they take the fewest steps to the shortest horizon, which is the cheapest
    way and the easiest one to learn on.

    A pure function of (seed, update): every process and every accumulated part of a batch draws the same way, and a
    resumed run draws what it would have drawn.

    Args:
        own: the model's own way; fills in whatever is not drawn.
        steps: numbers of solver steps; empty takes the model's own.
        horizons: multiples of the model's own horizon.
        seed: of the run.
        longest_step: largest T / N, so that few steps go with short horizons; 0 allows any.
        solvers: names of solvers; empty takes the model's own.
        own_share: share of the batches for which nothing is drawn.
        coarse: number of updates before drawing begins.
        hold: whether N counts the steps to the model's own horizon, a longer one being reached by more steps of the
            same size (distillation, which holds the last target there).
    """

    own: SolverConfig
    steps: Sequence[int] = ()
    horizons: Sequence[float] = (1.0,)
    seed: int = 0
    longest_step: float = 0.0
    solvers: Sequence[str] = ()
    own_share: float = 0.0
    coarse: int = 0
    hold: bool = False

    def __post_init__(self) -> None:
        shortest = min(self.horizons) * self.own.horizon
        problems = [
            f"{steps} steps over the shortest horizon {shortest:g} are each longer than {self.longest_step:g}; "
            "drop them, or raise train.longest_step"
            for steps in self._steps
            if not self._horizons(steps)
        ]
        if problems:
            raise ConfigError("train.steps", problems)

    def draw(self, update: int) -> SolverConfig:
        """The way of this batch."""
        if update < self.coarse:
            return self.coarsest
        generator = random.Random(f"{self.seed}:{update}")
        steps = generator.choice(self._steps)
        multiple = generator.choice(self._horizons(steps))
        # Solver and share are drawn last, so that recipes without them draw what they have always drawn.
        solver = generator.choice(self.solvers) if self.solvers else None
        stays = self.own_share > 0 and generator.random() < self.own_share
        return self.own if stays else self._way(solver, steps, multiple)

    @property
    def configs(self) -> list[SolverConfig]:
        """Everything that can be drawn."""
        solvers: Sequence[str | None] = self.solvers or [None]
        drawn = [
            self._way(solver, steps, multiple)
            for steps in self._steps
            for multiple in self._horizons(steps)
            for solver in solvers
        ]
        drawn = drawn if self.own_share < 1 else []
        always = [self.own] * (self.own_share > 0) + [self.coarsest] * (self.coarse > 0)
        return list(dict.fromkeys([*always, *drawn]))

    @property
    def coarsest(self) -> SolverConfig:
        """The fewest steps to the shortest horizon, with the first of the solvers."""
        return self._way(self.solvers[0] if self.solvers else None, min(self._steps), min(self.horizons))

    @property
    def _steps(self) -> Sequence[int]:
        return self.steps or [self.own.steps]

    def _horizons(self, steps: int) -> list[float]:
        # 1e-9: 18 / 12 must not fall to the last digit of a product.
        longest = self.longest_step + 1e-9 if self.longest_step else float("inf")
        return [multiple for multiple in self.horizons if multiple * self.own.horizon / steps <= longest]

    def _way(self, solver: str | None, steps: int, multiple: float) -> SolverConfig:
        if self.hold:
            return self.own.replace(solver, steps).stretched(max(1.0, multiple))
        return self.own.replace(solver, steps, multiple * self.own.horizon)
