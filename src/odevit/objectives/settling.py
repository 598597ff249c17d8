"""mean max(0, lambda + margin)^2, lambda the growth rate of a disturbance where a trajectory has ended."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from odevit.field.dynamics import Dynamics
from odevit.objectives.precision import at_least_single
from odevit.solver.exponential_euler import ExponentialEuler
from odevit.solver.penalty import Penalty, Step


@dataclass(frozen=True)
class Settling(Penalty):
    """mean max(0, lambda + margin)^2,  lambda = log( |d_k| / |d_0| ) / (k h), d the distance of two neighbours.

    Where the largest exponent is negative a state comes to rest, whatever disturbs it. The last state of a trajectory
    goes on for `waiting` steps, so that nothing is asked of the way to its answer. A random disturbance is carried
    along for `turning` more, which turn it towards the direction that grows most. Only the `counted` steps after that
    have a gradient, and only that of the field. Two neighbouring trajectories in place of a derivative: fused attention
    and compiled fields have no second one. The steps are exponential Euler's, which rests where the equation does.

    Args:
        margin: how much below zero is asked for, per unit of time.
        step: h.
        waiting, turning: steps without gradient, before and after the disturbance.
        counted: steps whose growth counts.
        distance: of the neighbours, over the size of the state.
    """

    margin: float = 0.1
    step: float = 1.0
    waiting: int = 12
    turning: int = 8
    counted: int = 2
    distance: float = 0.01

    def __call__(self, step: Step) -> Tensor:
        if step.left > 0:
            return step.after.new_zeros(())
        dynamics = step.dynamics.anchored(step.dynamics.anchor.detach())
        t = step.t + step.h
        x = at_least_single(step.after.detach())
        # In half precision the disturbance would be lost in the rounding of the field.
        with torch.autocast(x.device.type, enabled=False):
            growth = self._growth(dynamics, x, t)
        rate = growth.clamp_min(1e-12).log() / (self.counted * self.step)
        # The loop takes the mean over the steps, and this is the cost of all of them.
        return step.steps * (rate + self.margin).clamp_min(0.0).square().mean()

    def _growth(self, dynamics: Dynamics, x: Tensor, t: float) -> Tensor:
        """|d_k| / |d_0| of each sample."""
        solver = ExponentialEuler()
        with torch.no_grad():
            for _ in range(self.waiting):
                x = solver.step(dynamics, x, t, self.step)
            length = self.distance * x.flatten(1).norm(dim=1)
            disturbed = x + _of_length(torch.randn_like(x), length)
            for _ in range(self.turning):
                x, disturbed = (solver.step(dynamics, each, t, self.step) for each in (x, disturbed))
                disturbed = x + _of_length(disturbed - x, length)
        for _ in range(self.counted):
            x, disturbed = (solver.step(dynamics, each, t, self.step) for each in (x, disturbed))
        return (disturbed - x).flatten(1).norm(dim=1) / length


def _of_length(direction: Tensor, length: Tensor) -> Tensor:
    size = direction.flatten(1).norm(dim=1).clamp_min(1e-30)
    return direction * (length / size).view(-1, *[1] * (direction.ndim - 1))
