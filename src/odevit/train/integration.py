"""(N, T) ~ uniform(steps x horizons), one draw a batch: how a model learns not to depend on its integration."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from odevit.errors import ConfigError


@dataclass(frozen=True)
class IntegrationSampler:
    """N drawn uniformly from steps, then T from the horizons with T / N <= longest_step.

    A pure function of (seed, optimiser step): every process and every accumulated part of a batch draws the same pair,
    and a resumed run the same as before.

    Args:
        steps: numbers of solver steps.
        horizons: lengths of the trajectory.
        seed: of the run.
        longest_step: the largest T / N, so that few steps go with short horizons; 0 is any.
    """

    steps: Sequence[int]
    horizons: Sequence[float]
    seed: int
    longest_step: float = 0.0

    def __post_init__(self) -> None:
        problems = [
            f"{steps} steps over the shortest horizon {min(self.horizons):g} are each longer than "
            f"{self.longest_step:g}; drop them, or raise train.longest_step"
            for steps in self.steps
            if not self._horizons(steps)
        ]
        if problems:
            raise ConfigError("train.steps", problems)

    def draw(self, optimiser_step: int) -> tuple[int, float]:
        """The pair for this batch."""
        generator = random.Random(f"{self.seed}:{optimiser_step}")
        steps = generator.choice(self.steps)
        return steps, generator.choice(self._horizons(steps))

    @property
    def pairs(self) -> list[tuple[int, float]]:
        """Everything that can be drawn."""
        return [(steps, horizon) for steps in self.steps for horizon in self._horizons(steps)]

    def _horizons(self, steps: int) -> list[float]:
        # 1e-9: 18 / 12 must not fall to the last digit of a product.
        return [each for each in self.horizons if not self.longest_step or each / steps <= self.longest_step + 1e-9]


class OneWay:
    """The model's own integration, always: what is drawn where nothing can be drawn."""

    pairs: Sequence[tuple[Any, Any]] = ((None, None),)

    def draw(self, optimiser_step: int) -> tuple[None, None]:
        """None and None: as the model has it."""
        return None, None
