"""L = cross entropy + sum_i w_i r_i: what a step of training makes smaller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from odevit.solver import Penalty, Way
from odevit.train.penalised import Penalised


@dataclass(frozen=True)
class BatchLoss:
    """What a network without an output of its own gives for a batch: its loss, and the parts of it without gradient."""

    loss: Tensor
    parts: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainingLoss:
    """The network's own loss of a batch, plus what its trajectory costs.

    Args:
        weights: of the penalties, by name.
        penalties: what the solver's loop accumulates, by the same names.
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    penalties: Mapping[str, Penalty] = field(default_factory=dict)

    @classmethod
    def of(cls, recipe: Penalised) -> TrainingLoss:
        """The penalties whose weight is not 0."""
        return cls(recipe.weights, recipe.penalties)

    def __call__(self, network: Any, batch: Mapping[str, Any], way: Way | None) -> Tensor:
        """L of a batch that goes this way."""
        # A network whose recipe has no penalties need not accept any.
        asked = {"penalties": self.penalties} if self.penalties else {}
        output = network(**batch, way=way, **asked)
        loss: Tensor = output.loss
        for name, weight in self.weights.items():
            loss = loss + weight * output.trajectory.penalties[name]
        return loss
