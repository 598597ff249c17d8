"""x' = x + h sum_i b_i k_i: every explicit Runge-Kutta method, from its tableau."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from odevit.field.dynamics import Dynamics
from odevit.solver.base import FixedStepSolver
from odevit.solver.tableau import Tableau


def combine(x: Tensor, weights: Sequence[float], slopes: Sequence[Tensor], h: float) -> Tensor:
    """x + h sum_i w_i k_i, added in the dtype of the state even when the slopes come in a lower one."""
    for weight, slope in zip(weights, slopes, strict=True):
        if weight != 0.0:
            x = torch.add(x, slope, alpha=h * weight)
    return x


class RungeKutta(FixedStepSolver):
    """x' = x + h sum_i b_i k_i. A new method is a subclass with a tableau and an order."""

    tableau: ClassVar[Tableau]

    def step(self, dynamics: Dynamics, x: Tensor, t: float, h: float) -> Tensor:
        slopes: list[Tensor] = []
        for weights, node in zip(self.tableau.a, self.tableau.c, strict=True):
            slopes.append(dynamics(combine(x, weights, slopes, h), t + node * h))
        return combine(x, self.tableau.b, slopes, h)

    def evaluations(self, components: int) -> int:
        return self.tableau.stages
