"""x' = e^{hL} (1 + hF) (1 + hG) x: one component after the other."""

from __future__ import annotations

import torch
from torch import Tensor

from odevit.field.dynamics import Dynamics
from odevit.solver.base import SOLVERS, FixedStepSolver


@SOLVERS.register("lie_trotter")
class LieTrotter(FixedStepSolver):
    """y = x + h G(x);  z = y + h F(y);  x' = x0 + e^{-leak h} (z - x0). Order 1, one evaluation of each component.

    The splitting that the paper names (Sec. 2). With h = 1 and no leak a step is exactly a pre-norm Transformer block.
    The leak is solved exactly, so that it never limits the step size.
    """

    order = 1
    rests_with_equation = False

    def step(self, dynamics: Dynamics, x: Tensor, t: float, h: float) -> Tensor:
        for name in dynamics.components:
            x = torch.add(x, dynamics.component(name, x, t), alpha=h)
        return dynamics.relax(x, h)

    def evaluations(self, components: int) -> int:
        return 1
