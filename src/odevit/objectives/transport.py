"""1/T int_0^T |x'|^2 dt: the least effort (OT-Transformer)."""

from __future__ import annotations

from torch import Tensor

from odevit.objectives.precision import at_least_single
from odevit.solver.penalty import Penalty, Step


class Transport(Penalty):
    """r = |x'|^2 / numel, so that the loop accumulates 1/T int_0^T |x'|^2 / numel dt.

    The regulariser of OT-Transformer (Kan et al. 2025): of all trajectories with the same end the straight and even one
    costs least. x' is the mean velocity over a step, which for Euler is the field itself; for other solvers it falls
    short of the integral of |f|^2 within the step, by an amount that vanishes with the step. Their code integrates from
    0 to 1 and does not divide by the horizon; for another horizon T multiply the weight by T to have the same cost.
    """

    def __call__(self, step: Step) -> Tensor:
        return at_least_single(step.velocity).square().mean()
