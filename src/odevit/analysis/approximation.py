"""|x_n - x(t_n)| <= (e^L - 1) / (2 N L) C: the distance of steps from their equation, and its bounds (eq. 8, 11)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from odevit.analysis.base import differentiable_dynamics
from odevit.analysis.lipschitz import Estimate, local_lipschitz
from odevit.core.base import FixedStepSolver, Solver
from odevit.core.solve import Equation, solve
from odevit.core.solver_config import make_solver
from odevit.errors import DURATION, ConfigError, integer
from odevit.objectives.bounds import approximation_bound, curvature, dot_product, weight_bound
from odevit.objectives.vectors import norms

ASSUMED_LIPSCHITZ = 0.5
"""The paper's L, a bound of the Jacobian of softmax, not of the field."""


@dataclass(frozen=True)
class ApproximationError:
    """|x_n - x(t_n)| of each sample, its own error, and the paper's bounds.

    Args:
        error: [steps + 1, batch], the Euclidean norm over a whole state; 0 at the start.
        reference_error: [steps + 1, batch], the distance between two refinements of the reference x(t_n). The finer one
            is the reference; its error is about 1/15 of this once both are fine enough. If this is not much less than
            `error`, refine more.
        times: t_n.
        curvature: C, the largest |x''| on the reference, and its change by refining.
        lipschitz: L, the largest |df/dx| at some states of the reference, and the error of that norm.
        bound: eq. (8) with C and L as measured. It holds for Euler's method only. L is measured on the path and not
            between it and the steps, so a field that is much steeper next to its path may exceed it. Infinite where the
            reference is not finite.
        assumed_bound: eq. (8) with the measured C and the paper's L = 0.5.
        weight_bound: eq. (11), from the weights alone, for fields with dot-product attention; None for others.
    """

    error: Tensor
    reference_error: Tensor
    times: tuple[float, ...]
    curvature: Estimate
    lipschitz: Estimate
    bound: Tensor
    assumed_bound: Tensor
    weight_bound: Tensor | None

    @property
    def largest(self) -> Tensor:
        """max_n |x_n - x(t_n)|, one number per sample."""
        return self.error.amax(dim=0)


@torch.no_grad()
def approximation_error(
    field: Equation,
    x0: Tensor,
    *,
    solver: str | Solver,
    steps: int,
    horizon: float,
    refine: int = 8,
    anchor: Tensor | None = None,
    probes: int = 5,
    radius: float = 10.0,
) -> ApproximationError:
    """|x_n - x(t_n)|, n = 0..N: N steps of a solver against the solution of their equation.

    The reference is RK4 with `refine` steps in place of each one. Convert field and state to double precision to
    measure errors below the rounding of single precision.

    Args:
        x0: the state at time 0 [batch, ...].
        solver, steps, horizon: the integration to be measured.
        refine: at least 4.
        anchor: x(0) of the trajectory, to which the leak pulls, where x0 is a later state.
        probes: L is measured at so many states of the reference, evenly in time.
        radius: R of eq. (11); the paper takes 10.
    """
    method, problems = make_solver(solver), []
    if not isinstance(method, FixedStepSolver):
        problems.append(f"{type(method).__name__} chooses its own steps; expected fixed ones, such as solver='euler'")
    problems += integer(4).problem("refine", refine, "two refinements are compared")
    problems += integer(1).problem("probes", probes) + DURATION.problem("horizon", horizon)
    if problems:
        raise ConfigError("approximation_error", problems)

    # Forward derivatives refuse an expanded state, whose samples share memory.
    x0 = x0.detach().contiguous()
    dynamics = differentiable_dynamics(field, x0 if anchor is None else anchor)
    made = solve(dynamics, x0, solver=method, steps=steps, t1=horizon, save="all")
    coarse, fine = (
        solve(dynamics, x0, solver="rk4", steps=steps * n, t1=horizon, save="all") for n in (refine // 2, refine)
    )
    reference = fine.states[::refine]
    bend, bend_before = (curvature(solution.states, solution.times) for solution in (fine, coarse))
    probed = torch.linspace(0, len(fine.states) - 1, probes).round().long().tolist()
    measured = [local_lipschitz(dynamics, fine.states[n], fine.times[n]) for n in probed]
    steepest, spot = torch.stack([estimate.value for estimate in measured]).max(dim=0)
    error = torch.stack([estimate.error for estimate in measured]).gather(0, spot.unsqueeze(0)).squeeze(0)
    attention = dot_product(getattr(field, "attention", None))
    return ApproximationError(
        error=_distances(made.states, reference),
        reference_error=_distances(coarse.states[:: refine // 2], reference),
        times=made.times,
        curvature=Estimate(bend, (bend - bend_before).abs() / bend.clamp_min(1e-12)),
        lipschitz=Estimate(steepest, error),
        bound=_bound(bend, steepest, steps, horizon),
        assumed_bound=_bound(bend, torch.full_like(bend, ASSUMED_LIPSCHITZ), steps, horizon),
        weight_bound=None if attention is None else weight_bound(attention, radius, steps),
    )


def _bound(bend: Tensor, lipschitz: Tensor, steps: int, horizon: float) -> Tensor:
    """Eq. (8), infinite where C or L is not a number."""
    known = torch.isfinite(bend) & torch.isfinite(lipschitz)
    bound = approximation_bound(torch.where(known, bend, 0.0), torch.where(known, lipschitz, 0.0), steps, horizon)
    return torch.where(known, bound, torch.inf)


def _distances(some: tuple[Tensor, ...], others: tuple[Tensor, ...]) -> Tensor:
    return torch.stack([norms(a - b) for a, b in zip(some, others, strict=True)])
