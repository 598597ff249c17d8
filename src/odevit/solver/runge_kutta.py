"""x' = x + h sum_i b_i k_i: every explicit Runge-Kutta method, from Butcher's table of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from odevit.field.dynamics import Dynamics
from odevit.solver.method import FixedStepSolver


@dataclass(frozen=True)
class Tableau:
    """k_i = f(x + h sum_j a_ij k_j, t + c_i h),  x' = x + h sum_i b_i k_i.

    Args:
        a: lower triangle; row i holds the weights of the stages before stage i.
        b: weights of the stages in the step.
        c: nodes; the time of each stage as a fraction of the step.
        error: weights of the stages in the local error estimate; empty when the method has none.
    """

    a: tuple[tuple[float, ...], ...]
    b: tuple[float, ...]
    c: tuple[float, ...]
    error: tuple[float, ...] = ()

    @property
    def stages(self) -> int:
        """How many evaluations of the field a step takes."""
        return len(self.b)


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
