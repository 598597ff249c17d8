"""x' = e^{hL/2} G_{h/2} F_h G_{h/2} e^{hL/2} x: the symmetric splitting."""

from __future__ import annotations

import torch
from torch import Tensor

from odevit.core.base import SOLVERS, Dynamics, FixedStepSolver


@SOLVERS.register("strang")
class Strang(FixedStepSolver):
    """Half of the leak, half of G, all of F, half of G, half of the leak. Order 2.

    The composition has order 2 only if every sub-flow has order 2: the leak is solved exactly, G and F take midpoint
    steps. With Euler sub-steps, as in Macaron Net (Lu et al. 2019), the same composition has order 1. A step evaluates
    G four times and F twice.
    """

    order = 2
    rests_with_equation = False

    def step(self, dynamics: Dynamics, x: Tensor, t: float, h: float) -> Tensor:
        *outer, middle = dynamics.components
        x = dynamics.relax(x, h / 2)
        for name in outer:
            x = self._flow(dynamics, name, x, t, h / 2)
        x = self._flow(dynamics, middle, x, t, h)
        for name in reversed(outer):
            x = self._flow(dynamics, name, x, t + h / 2, h / 2)
        return dynamics.relax(x, h / 2)

    @staticmethod
    def _flow(dynamics: Dynamics, name: str, x: Tensor, t: float, h: float) -> Tensor:
        """The flow of one component over a time h, by the midpoint rule."""
        middle = torch.add(x, dynamics.component(name, x, t), alpha=h / 2)
        return torch.add(x, dynamics.component(name, middle, t + h / 2), alpha=h)

    def evaluations(self, components: int) -> int:
        return 2 if components == 1 else 4
