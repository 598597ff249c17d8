"""Solvers converge with their order on equations with known solutions."""

import pytest
import torch

from odevit.core.base import SOLVERS, Dynamics, FixedStepSolver
from odevit.core.solve import solve
from odevit.core.solver_config import make_solver
from odevit.time_varying.fade import Fade
from tests.problems import PROBLEMS, slope

FIXED = [name for name in SOLVERS if issubclass(SOLVERS[name], FixedStepSolver)]
EXACT_FOR_LEAK = ["lie_trotter", "strang", "exponential_euler", "exponential_heun"]


@pytest.mark.parametrize("leak", [0.0, 1.5])
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("name", FIXED)
def test_solver_error_falls_with_its_order(name, problem, leak):
    case = PROBLEMS[problem](leak)
    errors = [
        (solve(case.dynamics, case.x0, solver=name, steps=steps).state - case.exact(1.0)).abs().max().item()
        for steps in (64, 128, 256)
    ]
    assert slope(errors) == pytest.approx(SOLVERS[name].order, abs=0.1)


@pytest.mark.parametrize("steps", [1, 2, 7])
@pytest.mark.parametrize("name", EXACT_FOR_LEAK)
def test_leak_without_forcing_is_solved_exactly(name, steps):
    anchor = torch.tensor([1.0, -2.0], dtype=torch.float64)
    start = torch.tensor([4.0, 3.0], dtype=torch.float64)
    still = {"attention": lambda x, t, _: torch.zeros_like(x), "mlp": lambda x, t, _: torch.zeros_like(x)}
    dynamics = Dynamics(still, anchor=anchor, leak=3.0)
    found = solve(dynamics, start, solver=name, steps=steps, t1=5.0).state
    exact = anchor + torch.exp(torch.tensor(-15.0, dtype=torch.float64)) * (start - anchor)
    torch.testing.assert_close(found, exact, rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", ["exponential_euler", "exponential_heun"])
def test_exponential_solvers_are_exact_for_constant_forcing(name):
    push = torch.tensor([0.3, -0.7], dtype=torch.float64)
    anchor = torch.zeros(2, dtype=torch.float64)
    dynamics = Dynamics({"push": lambda x, t, _: push}, anchor=anchor, leak=2.0)
    found = solve(dynamics, anchor, solver=name, steps=1, t1=4.0).state
    torch.testing.assert_close(found, push / 2 * (1 - torch.exp(torch.tensor(-8.0, dtype=torch.float64))))


@pytest.mark.parametrize(("exponential", "plain"), [("exponential_euler", "euler"), ("exponential_heun", "heun")])
def test_exponential_solvers_without_leak_equal_plain_ones(exponential, plain):
    case = PROBLEMS["nonlinear"](0.0)
    a, b = (solve(case.dynamics, case.x0, solver=name, steps=5).state for name in (exponential, plain))
    torch.testing.assert_close(a, b, rtol=1e-14, atol=0)


@pytest.mark.parametrize("name", ["lie_trotter", "strang"])
@pytest.mark.parametrize("kept", ["attention", "mlp"])
def test_splitting_with_a_zero_component_equals_the_other_alone(name, kept):
    case = PROBLEMS["nonlinear"](0.8)
    both = {
        each: component if each == kept else (lambda x, t, _: torch.zeros_like(x))
        for each, component in case.dynamics.components.items()
    }
    alone = Dynamics({kept: case.dynamics.components[kept]}, anchor=case.x0, leak=0.8)
    with_zero = Dynamics(both, anchor=case.x0, leak=0.8)
    if name == "lie_trotter":
        found, expected = (solve(d, case.x0, solver=name, steps=6).state for d in (with_zero, alone))
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    else:
        # Strang takes an outer component in two half steps and a middle one in a whole step: equal up to its order.
        errors = [
            (solve(with_zero, case.x0, solver=name, steps=n).state - solve(alone, case.x0, solver=name, steps=n).state)
            .abs()
            .max()
            .item()
            for n in (64, 128)
        ]
        assert errors[-1] == 0.0 or slope(errors) == pytest.approx(2, abs=0.1)


@pytest.mark.parametrize("name", ["midpoint", "rk4"])
def test_runge_kutta_stages_are_evaluated_at_their_nodes(name):
    """x' = 3 t^2 has the solution t^3, which the midpoint rule misses by h^2/4 a unit of time and RK4 does not miss."""
    x0 = torch.zeros(1, dtype=torch.float64)
    found = solve(lambda x, t: torch.full_like(x, 3 * t**2), x0, solver=name, steps=4, t0=1.0, t1=2.0).state.item()
    expected = 7.0 - (2 - 1) * (1 / 4) ** 2 / 4 if name == "midpoint" else 7.0
    assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", FIXED)
def test_integrating_backwards_returns_to_the_start(name):
    case = PROBLEMS["linear"](0.0)
    errors = []
    for steps in (100, 200):
        there = solve(case.dynamics, case.x0, solver=name, steps=steps, t1=0.5).state
        back = solve(case.dynamics, there, solver=name, steps=steps, t0=0.5, t1=0.0).state
        errors.append((back - case.x0).abs().max().item())
    assert slope(errors) > SOLVERS[name].order - 0.1


def counting():
    """An equation of two terms, and how often each was evaluated."""
    calls = {"attention": 0, "mlp": 0}

    def counted(which):
        def component(x, t, _):
            calls[which] += 1
            return -x

        return component

    return Dynamics({which: counted(which) for which in calls}, anchor=torch.ones(2), leak=0.5), calls


@pytest.mark.parametrize("name", FIXED)
def test_nfe_equals_the_counted_evaluations(name):
    dynamics, calls = counting()
    solution = solve(dynamics, dynamics.anchor, solver=name, steps=5)
    assert solution.stats.nfe == max(calls.values())
    assert solution.stats.steps == 5


@pytest.mark.parametrize("name", FIXED)
def test_faded_field_is_not_evaluated_and_not_counted(name):
    dynamics, calls = counting()
    dynamics = Fade(1.0, 0.25)(dynamics)
    near, far = (solve(dynamics, dynamics.anchor, solver=name, steps=steps, t1=0.25 * steps).stats for steps in (5, 32))
    assert (near.nfe, far.steps) == (far.nfe, 32)
    # Stages of the last step that moves may lie where nothing does.
    spare = 2 * far.nfe - max(calls.values())
    assert 0 <= spare <= 2 * make_solver(name).evaluations(2)


def test_solver_object_equals_solver_name():
    case = PROBLEMS["linear"](0.0)
    by_name, by_object = (solve(case.dynamics, case.x0, solver=s, steps=3).state for s in ("heun", make_solver("heun")))
    assert torch.equal(by_name, by_object)
