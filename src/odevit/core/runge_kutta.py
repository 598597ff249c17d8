"""x' = x + h sum_i b_i k_i: explicit Runge-Kutta methods, each from its Butcher tableau."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from odevit.core.base import SOLVERS, Dynamics, FixedStepSolver


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


@SOLVERS.register("euler")
class Euler(RungeKutta):
    """x' = x + h f(x, t). Order 1, one evaluation.

    With h = 1/N it is a residual network of N layers with tied weights (eq. 1), both components seeing the same x.
    """

    order = 1
    tableau = Tableau(a=((),), b=(1.0,), c=(0.0,))


@SOLVERS.register("midpoint")
class Midpoint(RungeKutta):
    """x' = x + h f(x + h/2 f(x, t), t + h/2). Order 2, two evaluations."""

    order = 2
    tableau = Tableau(a=((), (0.5,)), b=(0.0, 1.0), c=(0.0, 0.5))


@SOLVERS.register("heun")
class Heun(RungeKutta):
    """x' = x + h/2 (k_1 + k_2), the explicit trapezoidal rule, often called RK2. Order 2, two evaluations."""

    order = 2
    tableau = Tableau(a=((), (1.0,)), b=(0.5, 0.5), c=(0.0, 1.0))


@SOLVERS.register("rk4")
class RK4(RungeKutta):
    """x' = x + h/6 (k_1 + 2 k_2 + 2 k_3 + k_4), the classical method. Order 4, four evaluations."""

    order = 4
    tableau = Tableau(
        a=((), (0.5,), (0.0, 0.5), (0.0, 0.0, 1.0)),
        b=(1 / 6, 1 / 3, 1 / 3, 1 / 6),
        c=(0.0, 0.5, 0.5, 1.0),
    )
