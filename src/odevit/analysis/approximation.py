"""|x_n - x(t_n)| <= (e^L - 1) / (2 N L) C: how far a model is from its equation, and how far it may be (eq. 8, 11)."""

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
"""The paper's L: a bound of the Jacobian of softmax, not of the field."""


@dataclass(frozen=True)
class ApproximationError:
    """|x_n - x(t_n)| of each sample, how well it is known, and how the paper bounds it.

    Args:
        error: [steps + 1, batch], the Euclidean norm over a whole state; 0 at the start.
        reference_error: [steps + 1, batch], how far apart two refinements of the reference x(t_n) are. The finer one is
            the reference; its own error is smaller, about 1/15 of this once both are fine enough. If this is not much
            less than `error`, refine more.
        times: t_n.
        curvature: C, the largest |x''| on the reference, and how much refining changed it.
        lipschitz: L, the largest |df/dx| at some states of the reference, and how well that norm is known.
        bound: eq. (8) with C and L as measured. It is about Euler's method; for others it is a yardstick. L is measured
            on the path and not on all that lies between it and the steps, so the error in a field that is much steeper
            next to its path may exceed it. Infinite where the reference left the finite numbers.
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
    """|x_n - x(t_n)|, n = 0..N: N steps of a solver against the solution of the equation that they stand for.

    The reference is RK4 with `refine` steps in place of each one. Errors below the rounding of the state cannot be
    seen: convert field and state to double precision for those.

    Args:
        x0: the state at time 0 [batch, ...].
        solver, steps, horizon: the integration to be judged.
        refine: at least 4.
        anchor: where the leak pulls to, when x0 is not the start of its trajectory.
        probes: at how many states of the reference, evenly in time, L is measured.
        radius: R of eq. (11); the paper takes 10.
    """
    method, problems = make_solver(solver), []
    if not isinstance(method, FixedStepSolver):
        problems.append(f"{type(method).__name__} chooses its own steps; expected fixed ones, such as solver='euler'")
    problems += integer(4).problem("refine", refine, "two refinements are compared") + integer(1).problem(
        "probes", probes
    )
    problems += DURATION.problem("horizon", horizon)
    if problems:
        raise ConfigError("approximation_error", problems)

    # An expanded state shares memory between its samples, which forward derivatives do not allow.
    x0 = x0.detach().contiguous()
    dynamics = differentiable_dynamics(field, x0 if anchor is None else anchor)
    made = solve(dynamics, x0, solver=method, steps=steps, t1=horizon, save="all")
    coarse, fine = (
        solve(dynamics, x0, solver="rk4", steps=steps * n, t1=horizon, save="all") for n in (refine // 2, refine)
    )
    reference = fine.states[::refine]
    bend, bend_before = (curvature(solution.states, solution.times) for solution in (fine, coarse))
    spots = torch.linspace(0, len(fine.states) - 1, probes).round().long().tolist()
    measured = [local_lipschitz(dynamics, fine.states[n], fine.times[n]) for n in spots]
    steepest, spot = torch.stack([estimate.value for estimate in measured]).max(dim=0)
    unsettled = torch.stack([estimate.error for estimate in measured]).gather(0, spot.unsqueeze(0)).squeeze(0)
    attention = dot_product(getattr(field, "attention", None))
    return ApproximationError(
        error=_distances(made.states, reference),
        reference_error=_distances(coarse.states[:: refine // 2], reference),
        times=made.times,
        curvature=Estimate(bend, (bend - bend_before).abs() / bend.clamp_min(1e-12)),
        lipschitz=Estimate(steepest, unsettled),
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
