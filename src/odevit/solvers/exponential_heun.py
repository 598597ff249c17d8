"""phi_k, and x' = y + h phi_2 (N(y) - N(x)): exponential time differencing of order 2."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from odevit.core.base import SOLVERS, Dynamics, FixedStepSolver


def phi(k: int, z: float) -> float:
    """int_0^1 e^{(1 - s) z} s^{k-1} / (k-1)! ds, and 1 / k! at z = 0."""
    if abs(z) < 0.5:
        # The recurrence loses all its digits to cancellation here; sixteen terms of z^j/(j+k)! are exact.
        return sum(z**j / math.factorial(j + k) for j in range(16))
    return math.expm1(z) / z if k == 1 else (phi(k - 1, z) - 1 / math.factorial(k - 1)) / z


def phi1(z: float) -> float:
    """(e^z - 1) / z, and 1 at z = 0."""
    return math.expm1(z) / z if z != 0.0 else 1.0


def phi2(z: float) -> float:
    """(e^z - 1 - z) / z^2, and 1/2 at z = 0."""
    return phi(2, z)


@SOLVERS.register("exponential_heun")
class ExponentialHeun(FixedStepSolver):
    """y = x0 + e^{-leak h}(x - x0) + h phi_1 N(x, t);  x' = y + h phi_2 (N(y, t + h) - N(x, t)).

    Order 2, two evaluations. The second-order exponential time differencing Runge-Kutta method, ETD2RK, of Cox and
    Matthews (2002). Without a leak it is Heun's method.
    """

    order = 2

    def step(self, dynamics: Dynamics, x: Tensor, t: float, h: float) -> Tensor:
        z = -dynamics.leak * h
        first = dynamics.forcing(x, t)
        y = torch.add(dynamics.relax(x, h), first, alpha=h * phi1(z))
        second = dynamics.forcing(y, t + h)
        return torch.add(y, second - first, alpha=h * phi2(z))

    def evaluations(self, components: int) -> int:
        return 2
