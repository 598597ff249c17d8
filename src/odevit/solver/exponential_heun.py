"""x' = y + h phi_2(-leak h) (N(y) - N(x)), y the exponential Euler step."""

from __future__ import annotations

import torch
from torch import Tensor

from odevit.field.dynamics import Dynamics
from odevit.solver.base import SOLVERS, FixedStepSolver
from odevit.solver.phi import phi1, phi2


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
