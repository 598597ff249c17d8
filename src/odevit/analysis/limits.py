"""h |lambda| < z: how long a step of an explicit solver may be before it is the solver that diverges."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from odevit.analysis.estimate import measurable
from odevit.analysis.sweep import Outcome
from odevit.field.dynamics import Field
from odevit.solver import AdaptiveSolver, RungeKutta, Tableau, make_solver
from odevit.tokens import Tokens


@dataclass(frozen=True)
class Limits:
    """h < z / |lambda|: the longest stable step of each solver.

    lambda is the largest eigenvalue of the Jacobian where the trajectories come to rest, and z the end of the interval
    of absolute stability: 2 for Euler, midpoint and Heun, 2.785 for RK4. That is exact for a real lambda and a rule of
    thumb otherwise. Splittings and exponential methods solve the leak exactly; only the eigenvalues of the remainder
    limit them, and z = 2 is on the safe side for all of them. Adaptive solvers choose a stable step themselves.

    Args:
        radius: |lambda| of the whole field.
        forcing: |lambda| without the leak.
        images: how many were measured; both numbers are the largest among them.
    """

    radius: float
    forcing: float
    images: int

    def longest(self, solver: str) -> float:
        """The longest stable step of a solver; infinite for an adaptive one."""
        method = make_solver(solver)
        if isinstance(method, AdaptiveSolver):
            return float("inf")
        if isinstance(method, RungeKutta):
            return stability_interval(method.tableau) / max(self.radius, 1e-12)
        return 2.0 / max(self.forcing, 1e-12)

    def marked(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """The same outcomes, marked as stable where the step is within the limit."""
        return [replace(outcome, stable=outcome.way.step < self.longest(outcome.way.name)) for outcome in outcomes]


def measure_limits(field: Field, rest: Tokens, x0: Tokens, t: float = 0.0, *, iterations: int = 40) -> Limits:
    """|lambda| = lim |J^n v|^{1/n} at rest points, with and without the leak; the largest over the images.

    The Lipschitz constant |J|_2 is never less than |lambda| and can be far larger when J is not normal: used as the
    limit it would refuse steps that are stable.

    Args:
        field: f.
        rest: states where trajectories came to rest.
        x0: where those started.
        t: the time, for a field that depends on it.
        iterations: of the power method; growth is averaged over the second half of them.
    """
    dynamics = measurable(field, x0)
    whole = _spectral_radius(lambda x: dynamics(x, t), rest, iterations)
    forcing = _spectral_radius(lambda x: dynamics.forcing(x, t), rest, iterations) if dynamics.leak else whole
    return Limits(whole.max().item(), forcing.max().item(), len(rest))


@functools.cache
def stability_interval(tableau: Tableau, finest: float = 1e-4) -> float:
    """The largest z with |R(-y)| <= 1 for all y in [0, z], R(z) = 1 + z b^T (1 - z A)^{-1} 1."""
    z = 0.0
    while z < 100.0 and abs(_amplification(tableau, -(z + finest))) <= 1.0 + 1e-12:
        z += finest
    return z


def _amplification(tableau: Tableau, z: float) -> float:
    slopes: list[float] = []
    for weights in tableau.a:
        slopes.append(1.0 + z * sum(w * k for w, k in zip(weights, slopes, strict=True)))
    return 1.0 + z * sum(w * k for w, k in zip(tableau.b, slopes, strict=True))


def _spectral_radius(velocity: Callable[[Tensor], Tensor], x: Tensor, iterations: int) -> Tensor:
    """Growth of a vector under the Jacobian; averaging over many iterations captures a complex pair as well."""
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x)
    growth = []
    for _ in range(iterations):
        size = v.flatten(1).norm(dim=1).clamp_min(1e-30)
        v = torch.func.jvp(velocity, (x,), (v / size.view(-1, *[1] * (v.ndim - 1)),))[1]
        growth.append(v.flatten(1).norm(dim=1).clamp_min(1e-30).log())
    return torch.stack(growth[iterations // 2 :]).mean(dim=0).exp()
