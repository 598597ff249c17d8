"""x' = x0 + e^{-leak h} (x - x0) + h phi_1(-leak h) (G + F)(x)."""

from __future__ import annotations

import torch
from torch import Tensor

from odevit.field.dynamics import Dynamics
from odevit.solver.base import SOLVERS, FixedStepSolver
from odevit.solver.phi import phi1


@SOLVERS.register("exponential_euler")
class ExponentialEuler(FixedStepSolver):
    """x' = x0 + e^{-leak h} (x - x0) + h phi_1(-leak h) N(x, t), N = G + F. Order 1, one evaluation.

    The leak is solved exactly and the forcing held still over the step: stable at any step size for the linear part,
    and exact at a rest point. Without a leak it is Euler's method.
    """

    order = 1

    def step(self, dynamics: Dynamics, x: Tensor, t: float, h: float) -> Tensor:
        weight = h * phi1(-dynamics.leak * h)
        return torch.add(dynamics.relax(x, h), dynamics.forcing(x, t), alpha=weight)

    def evaluations(self, components: int) -> int:
        return 1
