"""L = cross entropy + sum_i w_i r_i: what a step of training makes smaller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from odevit.objectives import JacobianNorm, JaSMin, Settling, Transport
from odevit.solver import Penalty
from odevit.train.integration import Drawn
from odevit.train.recipe import TrainRecipe


@dataclass(frozen=True)
class TrainingLoss:
    """The network's own loss of a batch, and what its trajectory costs.

    Args:
        weights: of the penalties, by name.
        penalties: what the solver's loop accumulates, by the same names.
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    penalties: Mapping[str, Penalty] = field(default_factory=dict)

    @classmethod
    def of(cls, recipe: TrainRecipe) -> TrainingLoss:
        """The penalties whose weight is not 0."""
        known: dict[str, Penalty] = {
            "jasmin": JaSMin(recipe.jasmin_k),
            "jacobian": JacobianNorm(),
            "settling": Settling(),
            "transport": Transport(),
        }
        weights = {name: getattr(recipe, name) for name in recipe.penalised}
        return cls(weights, {name: known[name] for name in weights})

    def __call__(self, network: Any, batch: Mapping[str, Any], drawn: Drawn) -> Tensor:
        """L, with the batch integrated as it was drawn."""
        # A network without penalties need not know that there are any.
        asked = {"penalties": self.penalties} if self.penalties else {}
        output = network(**batch, **drawn._asdict(), **asked)
        loss: Tensor = output.loss
        for name, weight in self.weights.items():
            loss = loss + weight * output.trajectory.penalties[name]
        return loss
