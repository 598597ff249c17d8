"""h |lambda| < z: the longest stable step of a solver, from the eigenvalues of df/dx."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from odevit.analysis.base import differentiable_dynamics, integrate, jacobian
from odevit.analysis.sweep import Outcome
from odevit.core.base import Field
from odevit.core.runge_kutta import RungeKutta, Tableau
from odevit.core.solver_config import SolverConfig, make_solver
from odevit.objectives.vectors import norms, random_normal, units
from odevit.solvers.adaptive import AdaptiveSolver
from odevit.solvers.multistep import Multistep
from odevit.tokens import Tokens

PATH_SAMPLES = 12
"""The eigenvalues of a field that changes with time are measured at no more steps of a path than this."""


@dataclass(frozen=True)
class StabilityLimits:
    """h < z / |lambda|: the longest stable step of each solver.

    lambda is the largest eigenvalue of the Jacobian at the rest points of trajectories, or along them where the field
    changes with time; z is the end of the interval of absolute stability: 2 for Euler, midpoint and Heun, 2.785 for
    RK4, 1 and 6/11 for multistep methods of order 2 and 3. That is exact for a real lambda and a rule of thumb
    otherwise. Splittings and exponential methods solve the leak exactly; only the eigenvalues of the remainder limit
    them, and z = 2 is on the safe side for the one-step methods. Adaptive solvers choose a stable step themselves.

    Args:
        radius: |lambda| of the whole field.
        forcing: |lambda| without the leak.
        images: how many were measured; both numbers are the largest among them.
        on_the_way: True if measured along the path from 0 to T, False if at rest.
    """

    radius: float
    forcing: float
    images: int
    on_the_way: bool = False

    def max_step(self, solver: str) -> float:
        """The longest stable step of a solver; infinite for an adaptive one."""
        method = make_solver(solver)
        if isinstance(method, AdaptiveSolver):
            return float("inf")
        if isinstance(method, RungeKutta):
            return stability_interval(method.tableau) / max(self.radius, 1e-12)
        if isinstance(method, Multistep):
            return method.interval / max(self.forcing if method.solves_leak else self.radius, 1e-12)
        return 2.0 / max(self.forcing, 1e-12)

    def mark_stable(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """The same outcomes with `stable` set: whether the step is within the limit of its solver."""
        configs = [outcome.solver_config for outcome in outcomes]
        stable = [config.step < self.max_step(config.name) for config in configs]
        return [replace(outcome, stable=value) for outcome, value in zip(outcomes, stable, strict=True)]


def measure_limits(field: Field, rest: Tokens, x0: Tokens, t: float = 0.0) -> StabilityLimits:
    """|lambda| = lim |J^n v|^{1/n} at rest points, with and without the leak; the largest over the images.

    The Lipschitz constant |J|_2 is never less than |lambda| and can be far larger when J is not normal: as a limit it
    would refuse steps that are stable.

    Args:
        field: f.
        rest: states at the ends of long trajectories.
        x0: where those started.
        t: the time, for a field that depends on it.
    """
    dynamics = differentiable_dynamics(field, x0)
    whole = _spectral_radius(lambda x: dynamics(x, t), rest)
    forcing = _spectral_radius(lambda x: dynamics.forcing(x, t), rest) if dynamics.leak else whole
    return StabilityLimits(whole.max().item(), forcing.max().item(), len(rest))


@torch.no_grad()
def measure_limits_along_path(field: Field, x0: Tokens, solver_config: SolverConfig) -> StabilityLimits:
    """The largest |lambda| along trajectories to T, for a field that changes with time.

    Measured at up to `PATH_SAMPLES` steps, and at the end.
    """
    steps = solver_config.steps
    path = integrate(field, x0, solver_config, save="all")
    probed = sorted({*range(0, steps, -(-steps // PATH_SAMPLES)), steps})
    measured = [measure_limits(field, path.states[n], x0, path.times[n]) for n in probed]
    return replace(combine_limits(measured), on_the_way=True)


def combine_limits(several: Sequence[StabilityLimits]) -> StabilityLimits:
    """The first of them, with the largest eigenvalues of all."""
    # As tensors, so that a NaN among them makes the maximum NaN.
    both = torch.tensor([[each.radius, each.forcing] for each in several], dtype=torch.float64)
    radius, forcing = both.amax(dim=0).tolist()
    return replace(several[0], radius=radius, forcing=forcing)


@functools.cache
def stability_interval(tableau: Tableau) -> float:
    """The largest z < 100 with |R(-y)| <= 1 for all y in [0, z], R(y) = 1 + y b^T (1 - y A)^{-1} 1, within 1e-4."""
    y = -torch.arange(0, 100, 1e-4, dtype=torch.float64)
    slopes: list[Tensor] = []
    for weights in tableau.a:
        slopes.append(1.0 + y * sum(w * k for w, k in zip(weights, slopes, strict=True)))
    growth = 1.0 + y * sum(w * k for w, k in zip(tableau.b, slopes, strict=True))
    unstable = (growth.abs() > 1.0 + 1e-12).nonzero()
    return -y[unstable[0] - 1].item() if len(unstable) else 100.0


@torch.no_grad()
def _spectral_radius(velocity: Callable[[Tensor], Tensor], x: Tensor, iterations: int = 40) -> Tensor:
    """Growth of a vector under the Jacobian, averaged over half of the iterations, which covers complex pairs."""
    v, growth, (push, _) = random_normal(x.shape, seed=0).to(x), [], jacobian(velocity, x.detach())
    for _ in range(iterations):
        v = push(units(v))
        growth.append(norms(v).clamp_min(1e-30).log())
    return torch.stack(growth[iterations // 2 :]).mean(dim=0).exp()
