"""x' = x0 + e^{-leak h} (x - x0) + h phi_1(-leak h) N(x): the leak solved exactly, the forcing held constant."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from odevit.core.base import SOLVERS, Dynamics, FixedStepSolver


@SOLVERS.register("exponential_euler")
class ExponentialEuler(FixedStepSolver):
    """x' = x0 + e^{-leak h} (x - x0) + h phi_1(-leak h) N(x, t), phi_1(z) = (e^z - 1) / z, N = G + F. Order 1.

    The leak is solved exactly and the forcing held still over the step: stable at any step size for the linear part,
    and exact at a rest point. Without a leak it is Euler's method.
    """

    order = 1

    def step(self, dynamics: Dynamics, x: Tensor, t: float, h: float) -> Tensor:
        z = -dynamics.leak * h
        phi1 = math.expm1(z) / z if z != 0.0 else 1.0
        return torch.add(dynamics.relax(x, h), dynamics.forcing(x, t), alpha=h * phi1)

    def evaluations(self, components: int) -> int:
        return 1
