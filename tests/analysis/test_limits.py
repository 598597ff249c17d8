"""Stability limits of solvers, from tableaus and eigenvalues, and in integrations."""

import math

import pytest
import torch

from odevit.analysis.limits import (
    StabilityLimits,
    combine_limits,
    measure_limits,
    measure_limits_along_path,
    stability_interval,
)
from odevit.analysis.sweep import Outcome
from odevit.core.base import Dynamics, Field
from odevit.core.runge_kutta import RK4, Euler, Heun, Midpoint
from odevit.core.solve import solve
from odevit.core.solver_config import SolverConfig
from tests.report.small import Linear


@pytest.mark.parametrize(("solver", "expected"), [(Euler, 2.0), (Heun, 2.0), (Midpoint, 2.0), (RK4, 2.7853)])
def test_stability_interval_of_every_tableau(solver, expected):
    assert stability_interval(solver.tableau) == pytest.approx(expected, abs=2e-4)


def test_measure_limits_uses_eigenvalues_and_not_the_norm():
    # Far from normal: the norm is 50, the eigenvalues are -3 and -1; with the leak they are one lower.
    matrix = torch.tensor([[-3.0, 50.0], [0.0, -1.0]], dtype=torch.float64)
    x = torch.randn(4, 1, 2, dtype=torch.float64)
    found = measure_limits(Linear(matrix, leak=1.0), x, x)
    assert found.radius == pytest.approx(4.0, rel=0.01)
    assert found.forcing == pytest.approx(3.0, rel=0.01)
    assert found.images == 4


def test_measure_limits_of_a_complex_pair_is_its_modulus():
    matrix = torch.tensor([[-1.0, 2.0], [-2.0, -1.0]], dtype=torch.float64)
    x = torch.randn(2, 1, 2, dtype=torch.float64)
    assert measure_limits(Linear(matrix), x, x).radius == pytest.approx(math.sqrt(5), rel=0.01)


@pytest.mark.parametrize("solver", ["euler", "heun", "midpoint", "rk4", "exponential_euler", "lie_trotter"])
def test_solvers_are_stable_within_their_limit(solver):
    # With a stiff leak the explicit methods are limited by all of it, the exponential ones by what is left.
    field = Linear(torch.tensor([[-2.0]], dtype=torch.float64), leak=8.0)
    x0 = torch.ones(1, 1, 1, dtype=torch.float64)
    limits = measure_limits(field, x0, x0)
    h = 0.98 * limits.max_step(solver)
    assert solve(field, x0, solver=solver, steps=400, t1=400 * h).state.abs().item() <= 1.0


@pytest.mark.parametrize("solver", ["euler", "heun", "midpoint", "rk4"])
def test_explicit_solvers_diverge_beyond_their_limit(solver):
    field = Linear(torch.tensor([[-2.0]], dtype=torch.float64), leak=8.0)
    x0 = torch.ones(1, 1, 1, dtype=torch.float64)
    h = 1.05 * measure_limits(field, x0, x0).max_step(solver)
    assert solve(field, x0, solver=solver, steps=400, t1=400 * h).state.abs().item() > 1e3


class Slackening(Field):
    """dx/dt = -l(t) x, l running straight from 6 to 2."""

    def dynamics(self, x0):
        return Dynamics({"linear": lambda x, t, _: -(6.0 - 4.0 * min(1.0, t / 4.0)) * x}, anchor=x0)


def test_measure_limits_along_path_takes_the_stiffest_time():
    """At the end only the 2 is left, and the steps that it allows take Euler's method away before."""
    field, x0 = Slackening(), torch.ones(1, 1, 1, dtype=torch.float64)
    limits = measure_limits_along_path(field, x0, SolverConfig("rk4", 32, 4.0))
    assert limits.on_the_way
    assert limits.max_step("euler") == pytest.approx(2 / 6, rel=1e-6)
    at_the_end = measure_limits(field, x0, x0, 4.0).max_step("euler")
    assert at_the_end == pytest.approx(1.0, rel=1e-6)
    farthest = [
        max(state.abs().item() for state in solve(field, x0, solver="euler", steps=n, t1=4.0, save="all").states)
        for n in (round(4.0 / limits.max_step("euler")) + 1, round(4.0 / at_the_end) + 1)
    ]
    assert farthest[0] <= 1.0 < farthest[1]


def test_combine_limits_takes_the_largest_eigenvalues():
    on_the_way, at_rest = StabilityLimits(4.0, 1.0, 8, on_the_way=True), StabilityLimits(3.0, 2.0, 8)
    assert combine_limits([on_the_way, at_rest]) == StabilityLimits(4.0, 2.0, 8, on_the_way=True)
    assert math.isnan(combine_limits([at_rest, StabilityLimits(math.nan, 1.0, 8)]).radius), "no limit is known"


def test_mark_stable_compares_steps_with_limits():
    limits = StabilityLimits(radius=4.0, forcing=2.0, images=1)
    ways = [("euler", 8, 3.0), ("euler", 4, 3.0), ("lie_trotter", 4, 3.0), ("dopri5", 1, 100.0)]
    marked = limits.mark_stable(
        [
            Outcome(SolverConfig(*solver_config), images=1, top1=1, agreement=1, nfe=1, finite=1)
            for solver_config in ways
        ]
    )
    assert [outcome.stable for outcome in marked] == [True, False, True, True]
