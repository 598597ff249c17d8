"""(N, T) ~ uniform(steps x horizons), one draw a batch: how a model learns not to depend on its integration."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class IntegrationSampler:
    """(N, T) drawn uniformly from steps x horizons, a pure function of (seed, optimiser step).

    Every process and every accumulated part of a batch draws the same pair, and a resumed run the same as before.

    Args:
        steps: numbers of solver steps.
        horizons: lengths of the trajectory.
        seed: of the run.
    """

    steps: Sequence[int]
    horizons: Sequence[float]
    seed: int

    def draw(self, optimiser_step: int) -> tuple[int, float]:
        """The pair for this batch."""
        generator = random.Random(f"{self.seed}:{optimiser_step}")
        return generator.choice(self.steps), generator.choice(self.horizons)

    @property
    def pairs(self) -> list[tuple[int, float]]:
        """Everything that can be drawn."""
        return [(steps, horizon) for steps in self.steps for horizon in self.horizons]
