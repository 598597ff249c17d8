"""1/T int_0^T |J(x)|_F^2 / numel dt, J the Jacobian of the forcing: states that are close stay close."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from odevit.errors import ConfigError, real
from odevit.solvers.hutchinson import jacobian_size
from odevit.solvers.penalties import PENALTIES, Penalty, Step


@PENALTIES.register("jacobian")
@dataclass(frozen=True)
class JacobianNorm(Penalty):
    """r = |f(x + d v) - f(x)|^2 / (d^2 numel), v ~ N(0, 1): E r = |J|_F^2 / numel + O(d^2).

    Hutchinson's estimate (Finlay et al. 2020 for neural ODEs), see `jacobian_size`; an equilibrium has it at its rest
    point, as an option of its own. f is the forcing without the leak, whose Jacobian is a constant.

    Args:
        distance: d relative to the root mean square of the state; a small one drowns in half precision's rounding.
    """

    distance: float = 0.03

    draws_noise = True

    def __post_init__(self) -> None:
        if problems := real(above=0).problem("distance", self.distance):
            raise ConfigError("jacobian", problems)

    def running(self, step: Step) -> Tensor:
        return jacobian_size(lambda x: step.dynamics.forcing(x, step.t), step.before, self.distance)
