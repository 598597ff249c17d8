"""mean max(0, lambda + margin)^2, lambda the growth rate of a disturbance beyond the end of a trajectory."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from odevit.core.base import Dynamics
from odevit.core.exponential import ExponentialEuler
from odevit.core.solver_config import MOST_STEPS
from odevit.errors import ConfigError, integer, real, validate
from odevit.objectives.vectors import at_least_single, norms, units, wide
from odevit.solvers.penalties import PENALTIES, Penalty

RULES = {
    "margin": real(minimum=0),
    "step": real(above=0),
    **dict.fromkeys(("waiting", "turning"), integer(0, MOST_STEPS)),
    "counted": integer(1, MOST_STEPS),
    "distance": real(above=0),
}


@PENALTIES.register("settling")
@dataclass(frozen=True)
class Settling(Penalty):
    """mean max(0, lambda + margin)^2,  lambda = log( |d_k| / |d_0| ) / (k h), d the distance between two neighbours.

    With a negative largest exponent, small disturbances of a state die out. The trajectory is continued for `waiting`
    steps beyond its end, so that the path to the answer is free. A random disturbance is then integrated for `turning`
    steps, which turn it towards the direction that grows fastest. Only the `counted` steps after that have a gradient,
    and only with respect to the field. The growth is that between two neighbouring trajectories, since fused attention
    and compiled fields have no second derivative. The steps are those of exponential Euler, whose rest points are those
    of the equation.

    Args:
        margin: how far below zero the growth rate should be, per unit of time.
        step: h.
        waiting, turning: steps without gradient, before and after the disturbance.
        counted: steps whose growth counts.
        distance: between the neighbours, relative to the size of the state.
    """

    fixed_options = tuple(RULES)

    margin: float = 0.1
    step: float = 1.0
    waiting: int = 12
    turning: int = 8
    counted: int = 2
    distance: float = 0.01

    def __post_init__(self) -> None:
        if problems := validate(self, RULES):
            raise ConfigError("settling", problems)

    def terminal(self, dynamics: Dynamics, state: Tensor, t: float) -> Tensor:
        solver, dynamics = ExponentialEuler(), dynamics.with_anchor(dynamics.anchor.detach())

        def advance(x: Tensor) -> Tensor:
            return solver.step(dynamics, x, t, self.step)

        # In half precision the disturbance would be below the rounding of the field.
        with torch.autocast(state.device.type, enabled=False):
            with torch.no_grad():
                x = at_least_single(state)
                for _ in range(self.waiting):
                    x = advance(x)
                length = self.distance * norms(x)
                neighbour = x + wide(length, x) * units(torch.randn_like(x))
                for _ in range(self.turning):
                    x, neighbour = advance(x), advance(neighbour)
                    neighbour = x + wide(length, x) * units(neighbour - x)
            for _ in range(self.counted):
                x, neighbour = advance(x), advance(neighbour)
        growth = norms(neighbour - x) / length
        rate = growth.clamp_min(1e-12).log() / (self.counted * self.step)
        return (rate + self.margin).clamp_min(0.0).square().mean()
