"""1/T int_0^T |x'|^2 dt: the least effort (OT-Transformer)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from odevit.objectives.vectors import at_least_single
from odevit.solvers.penalties import PENALTIES, Penalty, Step


@PENALTIES.register("transport")
@dataclass(frozen=True)
class Transport(Penalty):
    """r = |x'|^2 / numel, so that the loop accumulates 1/T int_0^T |x'|^2 / numel dt.

    The regulariser of OT-Transformer (Kan et al. 2025): of all trajectories with the same end, the straight one of
    constant speed costs least. x' is the mean velocity over a step: for Euler the field itself; for other solvers its
    square falls short of the integral of |f|^2 over the step, by an amount that vanishes with the step. Their code
    integrates from 0 to 1 and does not divide by the horizon; for a horizon T, multiply the weight by T to match it.
    """

    def running(self, step: Step) -> Tensor:
        return at_least_single(step.velocity).square().mean()
