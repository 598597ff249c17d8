"""k_i = f(x + h sum_j a_ij k_j, t + c_i h),  x' = x + h sum_i b_i k_i: Butcher's table of a Runge-Kutta method."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tableau:
    """The coefficients of an explicit Runge-Kutta method.

    Args:
        a: lower triangle; row i holds the weights of the stages before stage i.
        b: weights of the stages in the step.
        c: nodes; the time of each stage as a fraction of the step.
        error: weights of the stages in the local error estimate; empty when the method has none.
    """

    a: tuple[tuple[float, ...], ...]
    b: tuple[float, ...]
    c: tuple[float, ...]
    error: tuple[float, ...] = ()

    @property
    def stages(self) -> int:
        """How many evaluations of the field a step takes."""
        return len(self.b)
