"""Errors against solutions that are known, and eq. (8) above them."""

import math

import pytest
import torch

from odevit.analysis.approximation import approximation_error
from odevit.core.base import SOLVERS, FixedStepSolver
from odevit.core.field import VectorField
from odevit.errors import ConfigError
from tests.problems import slope

HORIZON = 2.0
START = torch.tensor([[1.0, 0.5], [0.3, -2.0]], dtype=torch.float64)
TURN = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)


def decay(x, t):
    return -x


def rotation(x, t):
    return 1.5 * x @ TURN.T


def logistic(x, t):
    return x * (1.0 - x)


def logistic_solution(x, t):
    return 1.0 / (1.0 + (1.0 / x - 1.0) * math.exp(-t))


# f, exact solution, start, L, and C as a function of the start.
CASES = {
    "decay": (decay, lambda x, t: x * math.exp(-t), START, 1.0, lambda x: x.norm(dim=1)),
    "rotation": (
        rotation,
        lambda x, t: x @ torch.matrix_exp(1.5 * t * TURN).T,
        START,
        1.5,
        lambda x: 2.25 * x.norm(dim=1),
    ),
    # From 0.05 to 0.28: f' = 1 - 2x is largest at the start, x'' = f' f in the middle, at x = (1 - 1 / sqrt(3)) / 2.
    "logistic": (
        logistic,
        logistic_solution,
        torch.tensor([[0.05]], dtype=torch.float64),
        0.9,
        lambda x: torch.full((len(x),), 1.0 / (6.0 * math.sqrt(3.0)), dtype=x.dtype),
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("steps", [4, 16, 64])
def test_approximation_error_matches_the_exact_solution(case, steps):
    f, exact, x0, _, _ = CASES[case]
    measured = approximation_error(f, x0, solver="euler", steps=steps, horizon=HORIZON)
    x, h = x0, HORIZON / steps
    for n in range(steps + 1):
        expected = (x - exact(x0, n * h)).norm(dim=1)
        torch.testing.assert_close(measured.error[n], expected, rtol=1e-3, atol=1e-7)
        x = x + h * f(x, n * h)
    assert measured.times[-1] == HORIZON


@pytest.mark.parametrize("case", CASES)
def test_approximation_error_measures_c_and_l_of_the_problem(case):
    f, _, x0, lipschitz, bend = CASES[case]
    measured = approximation_error(f, x0, solver="euler", steps=50, horizon=HORIZON)
    torch.testing.assert_close(measured.lipschitz.value, torch.full((len(x0),), lipschitz).double(), rtol=1e-4, atol=0)
    torch.testing.assert_close(measured.curvature.value, bend(x0), rtol=0.01, atol=0)
    assert (measured.curvature.error < 0.02).all()
    assert (measured.lipschitz.error < 1e-6).all()


@pytest.mark.parametrize("case", CASES)
def test_equation_8_holds_for_euler_and_falls_as_one_over_n(case):
    f, _, x0, _, _ = CASES[case]
    measured = {
        steps: approximation_error(f, x0, solver="euler", steps=steps, horizon=HORIZON) for steps in (4, 8, 16, 32, 64)
    }
    for one in measured.values():
        assert (one.error <= one.bound).all()
        assert (one.assumed_bound < one.bound).all()
    halved = torch.full((len(x0),), 2.0, dtype=torch.float64)
    torch.testing.assert_close(measured[32].bound / measured[64].bound, halved, rtol=0.02, atol=0)
    torch.testing.assert_close(measured[32].largest / measured[64].largest, halved, rtol=0.1, atol=0)


@pytest.mark.parametrize("solver", [name for name, kind in SOLVERS.items() if issubclass(kind, FixedStepSolver)])
def test_the_error_converges_with_the_order_of_the_solver(solver):
    x0 = torch.tensor([[0.2]], dtype=torch.float64)
    errors = [
        approximation_error(logistic, x0, solver=solver, steps=steps, horizon=HORIZON).largest.item()
        for steps in (8, 16, 32)
    ]
    # A symmetric splitting of a single component has an order more than it promises of two.
    assert slope(errors) > SOLVERS[solver].order - 0.3


def test_reference_error_bounds_the_error_of_the_reference():
    """The two refinements differ by more than the finer one is wrong."""
    x0 = torch.tensor([[0.2], [0.7]], dtype=torch.float64)
    measured = approximation_error(logistic, x0, solver="rk4", steps=4, horizon=HORIZON, refine=4)
    finer = approximation_error(logistic, x0, solver="rk4", steps=16, horizon=HORIZON)
    assert (finer.largest < measured.reference_error.amax(dim=0)).all()
    assert (measured.reference_error.amax(dim=0) < 0.2 * measured.largest).all()


def test_weight_bound_is_none_without_dot_product_attention():
    x0 = torch.randn(2, 3, 8)
    measured = {
        kind: approximation_error(
            VectorField(8, 2, 1.0, attention=kind, leak=1.0), x0, solver="lie_trotter", steps=4, horizon=1.0
        )
        for kind in ("dot", "cosine", "l2")
    }
    assert measured["dot"].weight_bound is not None
    assert measured["dot"].weight_bound > 0
    assert measured["cosine"].weight_bound is None
    assert measured["l2"].weight_bound is None


def test_anchor_sets_the_target_of_the_leak():
    """x' = -leak (x - anchor) alone: the exponential solver is exact, whatever the start."""
    field = VectorField(8, 2, 1.0, leak=1.0).double()
    torch.nn.init.zeros_(field.attention.o_proj.weight)
    torch.nn.init.zeros_(field.components["mlp"].body.down_proj.weight)
    anchor, x0 = torch.randn(2, 2, 3, 8, dtype=torch.float64)
    measured = approximation_error(field, x0, solver="lie_trotter", steps=4, horizon=1.0, anchor=anchor, refine=32)
    assert (measured.largest < 1e-6).all()
    expected = (x0 - anchor).flatten(1).norm(dim=1)
    torch.testing.assert_close(measured.curvature.value, expected, rtol=0.02, atol=0)


def test_samples_are_independent_and_inputs_unchanged():
    field = VectorField(8, 2, 1.0, dropout=0.5)
    x0 = torch.randn(3, 4, 8)
    state = torch.get_rng_state()
    approximation_error(field, x0, solver="euler", steps=3, horizon=1.0)
    assert torch.equal(state, torch.get_rng_state())
    assert field.training
    assert all(parameter.grad is None for parameter in field.parameters())
    field.eval()
    together = approximation_error(field, x0, solver="euler", steps=3, horizon=1.0).error
    alone = [approximation_error(field, one, solver="euler", steps=3, horizon=1.0).error for one in x0.split(1)]
    torch.testing.assert_close(together, torch.cat(alone, dim=1))


def test_bound_of_a_diverging_solution_is_infinite():
    """x' = x^2 reaches infinity at t = 1/x0: one sample does, the other does not."""
    x0 = torch.tensor([[0.2], [5.0]], dtype=torch.float64)
    measured = approximation_error(lambda x, t: x * x, x0, solver="euler", steps=40, horizon=2.0)
    assert torch.isfinite(measured.bound).tolist() == [True, False]
    assert torch.isfinite(measured.largest).tolist() == [True, False]


def test_all_problems_are_reported_together():
    x0 = torch.ones(1, 2)
    with pytest.raises(ConfigError) as caught:
        approximation_error(decay, x0, solver="tsit5", steps=3, horizon=0.0, refine=1, probes=0)
    assert [problem.split("=")[0].split()[0] for problem in caught.value.problems] == [
        "Tsit5",
        "refine",
        "probes",
        "horizon",
    ]
