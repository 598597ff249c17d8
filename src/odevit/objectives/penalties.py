"""1/T int_0^T r dt: penalties on the squared velocity and on the Jacobian along a trajectory."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from odevit.errors import ConfigError, real
from odevit.objectives.vectors import at_least_single
from odevit.solvers.implicit import jacobian_size
from odevit.solvers.penalties import PENALTIES, Penalty, Step


@PENALTIES.register("transport")
@dataclass(frozen=True)
class Transport(Penalty):
    """r = |x'|^2 / numel, so that the loop accumulates 1/T int_0^T |x'|^2 / numel dt.

    The regulariser of OT-Transformer (Kan et al. 2025): of all trajectories with the same end, the straight one of
    constant speed costs least. x' is the mean velocity over a step, for Euler the field itself. Their code integrates
    from 0 to 1 and does not divide by the horizon; for a horizon T, multiply the weight by T to match it.
    """

    def running(self, step: Step) -> Tensor:
        return at_least_single(step.velocity).square().mean()


@PENALTIES.register("jacobian")
@dataclass(frozen=True)
class JacobianNorm(Penalty):
    """r = |f(x + d v) - f(x)|^2 / (d^2 numel), v ~ N(0, 1): E r = |J|_F^2 / numel + O(d^2).

    Hutchinson's estimate (Finlay et al. 2020 for neural ODEs), see `jacobian_size`. f is the forcing without the leak,
    whose Jacobian is constant. Equilibrium models have the same penalty at their rest point as an option.

    Args:
        distance: d relative to the root mean square of the state; not too small for half precision.
    """

    distance: float = 0.03

    draws_noise = True
    fixed_options = ("distance",)

    def __post_init__(self) -> None:
        if problems := real(above=0).problem("distance", self.distance):
            raise ConfigError("jacobian", problems)

    def running(self, step: Step) -> Tensor:
        return jacobian_size(lambda x: step.dynamics.forcing(x, step.t), step.before, self.distance)
