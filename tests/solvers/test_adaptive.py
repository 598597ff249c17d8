"""Adaptive solvers keep their tolerance and report failures."""

import math

import pytest
import torch

from odevit.core.solve import solve
from odevit.solvers.adaptive import Dopri5, Tsit5
from tests.problems import PROBLEMS, slope

ADAPTIVE = [Dopri5, Tsit5]


@pytest.mark.parametrize("method", ADAPTIVE)
def test_adaptive_tableau_is_consistent(method):
    tableau = method.tableau
    for weights, node in zip(tableau.a, tableau.c, strict=True):
        assert sum(weights) == pytest.approx(node, abs=1e-13)
    assert sum(tableau.b) == pytest.approx(1.0, abs=1e-13)
    assert sum(tableau.error) == pytest.approx(0.0, abs=1e-13)
    assert tableau.a[-1] == tableau.b[:-1], "the last stage must be the end of the step, which the next step reuses"


@pytest.mark.parametrize("method", ADAPTIVE)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_adaptive_step_has_order_5_and_error_estimate_order_4(method, problem):
    case = PROBLEMS[problem](0.7)
    solver = method()
    local, estimated = [], []
    for h in (0.2, 0.1, 0.05):
        after, _, error = solver._try(case.dynamics, case.x0, case.dynamics(case.x0, 0.0), 0.0, h)
        local.append((after - case.exact(h)).abs().max().item())
        estimated.append(error.abs().max().item())
    # One step of a method of order 5 errs like h^6; on linear problems Tsit5 is built to have next to no h^6 term.
    assert 5.65 < slope(local) < 7.1
    assert slope(estimated) == pytest.approx(5, abs=0.35)


@pytest.mark.parametrize("method", ADAPTIVE)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_smaller_tolerance_gives_a_smaller_error(method, problem):
    case = PROBLEMS[problem](0.7)
    errors = []
    for tolerance in (1e-4, 1e-7, 1e-10):
        solution = solve(case.dynamics, case.x0, solver=method(rtol=tolerance, atol=tolerance), t1=3.0)
        errors.append((solution.state - case.exact(3.0)).abs().max().item())
        assert solution.ok
        assert errors[-1] < 100 * tolerance * case.exact(3.0).abs().max().item()
    assert errors[0] > errors[1] > errors[2]


@pytest.mark.parametrize("method", ADAPTIVE)
def test_save_returns_states_at_exact_times(method):
    case = PROBLEMS["nonlinear"](0.0)
    solution = solve(case.dynamics, case.x0, solver=method(rtol=1e-9, atol=1e-9), steps=8, t1=2.0, save=[0, 3, 8])
    assert solution.times == (0.0, 0.75, 2.0)
    for state, t in zip(solution.states, solution.times, strict=True):
        torch.testing.assert_close(state, case.exact(t), rtol=1e-7, atol=1e-7)


def test_dopri5_equals_torchdiffeq():
    torchdiffeq = pytest.importorskip("torchdiffeq")
    case = PROBLEMS["nonlinear"](0.5)
    theirs = torchdiffeq.odeint(
        lambda t, x: case.dynamics(x, float(t)),
        case.x0,
        torch.tensor([0.0, 2.0]),
        rtol=1e-9,
        atol=1e-9,
        method="dopri5",
    )[-1]
    ours = solve(case.dynamics, case.x0, solver=Dopri5(rtol=1e-9, atol=1e-9), t1=2.0).state
    torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("method", ADAPTIVE)
def test_max_steps_reached_gives_a_status_and_the_last_state(method):
    x0 = torch.ones(1, dtype=torch.float64)
    solution = solve(lambda x, t: 50 * math.cos(50 * t) * x, x0, solver=method(max_steps=5, rtol=1e-8, atol=1e-8))
    assert not solution.ok
    assert 0 < solution.time < 1
    assert "max_steps" in solution.status
    exact = math.exp(math.sin(50 * solution.time))
    assert solution.state.item() == pytest.approx(exact, rel=1e-5), "the last state is accurate"


@pytest.mark.parametrize("method", ADAPTIVE)
def test_blow_up_gives_a_status(method):
    """x' = x^2 from 1 reaches infinity at t = 1."""
    solution = solve(lambda x, t: x**2, torch.ones(1, dtype=torch.float64), solver=method(), t1=2.0)
    assert not solution.ok
    assert "min_step" in solution.status or "max_steps" in solution.status
    assert solution.time < 1.01


@pytest.mark.parametrize("method", ADAPTIVE)
def test_gradients_through_adaptive_steps_equal_the_exact_ones(method):
    """x(t) = x0 e^{a t}: dx/dx0 = e^{a t}, dx/da = t x."""
    x0 = torch.tensor([2.0], dtype=torch.float64, requires_grad=True)
    a = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    state = solve(lambda x, t: a * x, x0, solver=method(rtol=1e-10, atol=1e-10), t1=1.5).state
    dx0, da = torch.autograd.grad(state.sum(), (x0, a))
    assert dx0.item() == pytest.approx(math.exp(1.05), rel=1e-7)
    assert da.item() == pytest.approx(1.5 * 2 * math.exp(1.05), rel=1e-7)


def test_invalid_tolerances_are_reported_together():
    with pytest.raises(ValueError, match=r"rtol=-1.*max_steps=0"):
        Dopri5(rtol=-1, max_steps=0)
