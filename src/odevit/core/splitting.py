"""x' = e^{hL} (1 + hF) (1 + hG) x: one component after the other, the leak solved exactly."""

from __future__ import annotations

import torch
from torch import Tensor

from odevit.core.base import SOLVERS, Dynamics, FixedStepSolver


@SOLVERS.register("lie_trotter")
class LieTrotter(FixedStepSolver):
    """y = x + h G(x);  z = y + h F(y);  x' = x0 + e^{-leak h} (z - x0). Order 1, one evaluation of each component.

    The splitting that the paper names (Sec. 2). With h = 1 and no leak a step is exactly a pre-norm Transformer block.
    The leak is solved exactly, so that it never limits the step size. A field that knows the time is asked in the
    middle of the step: of all times the one that stands best for it.
    """

    order = 1
    rests_with_equation = False

    def step(self, dynamics: Dynamics, x: Tensor, t: float, h: float) -> Tensor:
        for name in dynamics.components:
            x = torch.add(x, dynamics.component(name, x, t + h / 2), alpha=h)
        return dynamics.relax(x, h)

    def evaluations(self, components: int) -> int:
        return 1
