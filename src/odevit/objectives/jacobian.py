"""1/T int_0^T |J(x)|_F^2 / numel dt, J the Jacobian of the forcing: states that are close stay close."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from odevit.objectives.vectors import at_least_single
from odevit.solver import PENALTIES, Penalty, Step


@PENALTIES.register("jacobian")
@dataclass(frozen=True)
class JacobianNorm(Penalty):
    """r = |f(x + d v) - f(x)|^2 / (d^2 numel), v ~ N(0, 1): E r = |J|_F^2 / numel + O(d^2).

    Hutchinson's estimate (Finlay et al. 2020 for neural ODEs, Bai et al. 2021 for equilibria) with a difference in
    place of a derivative: fused attention and compiled fields have no second derivative, and a difference needs none.
    f is the forcing without the leak, whose Jacobian is a constant.

    Args:
        distance: d relative to the root mean square of the state; a small one drowns in half precision's rounding.
    """

    distance: float = 0.03

    draws_noise = True

    def running(self, step: Step) -> Tensor:
        x = step.before
        length = self.distance * at_least_single(x.detach()).square().mean().sqrt()
        moved = x + (length * torch.randn_like(x)).to(x.dtype)
        change = at_least_single(step.dynamics.forcing(moved, step.t) - step.dynamics.forcing(x, step.t))
        return (change / length).square().mean()
