"""(solver, N, T) ~ uniform(solvers x steps x horizons), one draw a batch: answers that do not hang on integration."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from odevit.errors import ConfigError


class Drawn(NamedTuple):
    """How a batch is integrated. What is None is as the model has it."""

    solver: str | None = None
    steps: int | None = None
    horizon: float | None = None


@dataclass(frozen=True)
class IntegrationSampler:
    """N drawn uniformly from steps, T from the horizons with T / N <= longest_step, the solver from solvers.

    What stands twice in a list is drawn twice as often. A share `own` of the batches is integrated as the model does it
    by itself. For the first `coarse` batches nothing is drawn at all: they take the fewest steps to the shortest
    horizon, which costs least and is the easiest way to learn on.

    A pure function of (seed, optimiser step): every process and every accumulated part of a batch draws the same, and a
    resumed run the same as before.

    Args:
        steps: numbers of solver steps.
        horizons: lengths of the trajectory.
        seed: of the run.
        longest_step: the largest T / N, so that few steps go with short horizons; 0 is any.
        solvers: names of solvers; empty is the model's own.
        own: share of the batches for which nothing is drawn.
        coarse: number of optimiser steps before drawing begins.
    """

    steps: Sequence[int]
    horizons: Sequence[float]
    seed: int
    longest_step: float = 0.0
    solvers: Sequence[str] = ()
    own: float = 0.0
    coarse: int = 0

    def __post_init__(self) -> None:
        problems = [
            f"{steps} steps over the shortest horizon {min(self.horizons):g} are each longer than "
            f"{self.longest_step:g}; drop them, or raise train.longest_step"
            for steps in self.steps
            if not self._horizons(steps)
        ]
        if problems:
            raise ConfigError("train.steps", problems)

    def draw(self, optimiser_step: int) -> Drawn:
        """How this batch is integrated."""
        if optimiser_step < self.coarse:
            return self.coarsest
        generator = random.Random(f"{self.seed}:{optimiser_step}")
        steps = generator.choice(self.steps)
        horizon = generator.choice(self._horizons(steps))
        # The new draws come last, so that recipes without them draw what they always drew.
        solver = generator.choice(self.solvers) if self.solvers else None
        return Drawn() if self.own and generator.random() < self.own else Drawn(solver, steps, horizon)

    @property
    def ways(self) -> list[Drawn]:
        """Everything that can be drawn."""
        solvers: Sequence[str | None] = self.solvers or [None]
        drawn = [
            Drawn(solver, steps, horizon)
            for steps in self.steps
            for horizon in self._horizons(steps)
            for solver in solvers
        ]
        also = [Drawn()] * (self.own > 0) + [self.coarsest] * (self.coarse > 0)
        return list(dict.fromkeys([*also, *drawn]))

    @property
    def coarsest(self) -> Drawn:
        """The fewest steps to the shortest horizon with the first of the solvers."""
        return Drawn(self.solvers[0] if self.solvers else None, min(self.steps), min(self.horizons))

    def _horizons(self, steps: int) -> list[float]:
        # 1e-9: 18 / 12 must not fall to the last digit of a product.
        return [each for each in self.horizons if not self.longest_step or each / steps <= self.longest_step + 1e-9]


class OneWay:
    """The model's own integration, always: what is drawn where nothing can be drawn."""

    ways: Sequence[Drawn] = (Drawn(),)

    def draw(self, optimiser_step: int) -> Drawn:
        """As the model has it."""
        return Drawn()
