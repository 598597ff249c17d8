"""Bounds of Euler's error against the errors."""

import itertools
import math

import pytest
import torch

from odevit.core.attention import ATTENTIONS, DotProductAttention
from odevit.core.solve import solve
from odevit.objectives.bounds import approximation_bound, curvature, weight_bound

EPS = torch.finfo(torch.float64).eps
STEPS = (4, 16, 64, 256)


def largest_error(field, x0, exact, steps, horizon):
    solution = solve(field, x0, solver="euler", steps=steps, t1=horizon, save="all")
    return max(
        torch.linalg.vector_norm(x - exact(t)).item() for x, t in zip(solution.states, solution.times, strict=True)
    )


def check_against(field, x0, exact, lipschitz, bend, horizon):
    bounds = [approximation_bound(bend, lipschitz, n, horizon) for n in STEPS]
    errors = [largest_error(field, x0, exact, n, horizon) for n in STEPS]
    assert all(0 < error <= bound for error, bound in zip(errors, bounds, strict=True))
    assert all(a / b == pytest.approx(4) for a, b in itertools.pairwise(bounds))


@pytest.mark.parametrize("rate", [-1.5, 0.8])
@pytest.mark.parametrize("horizon", [0.5, 1.0, 3.0])
def test_approximation_bound_holds_for_euler_on_a_linear_equation(rate, horizon):
    """x' = rate x: L = |rate|, |x''| = rate^2 |x|."""
    x0 = torch.tensor([[1.0, -2.0]], dtype=torch.float64)
    bend = rate**2 * x0.norm().item() * max(1.0, math.exp(rate * horizon))
    check_against(lambda x, t: rate * x, x0, lambda t: x0 * math.exp(rate * t), abs(rate), bend, horizon)


@pytest.mark.parametrize("start", [0.02, 0.3])
@pytest.mark.parametrize("horizon", [1.0, 4.0])
def test_approximation_bound_holds_for_euler_on_the_logistic_equation(start, horizon):
    """x' = x (1 - x) on [0, 1]: L = max |1 - 2x| = 1, |x''| = |x (1 - x) (1 - 2x)| <= 1 / (6 sqrt 3)."""
    x0 = torch.tensor([[start]], dtype=torch.float64)
    check_against(
        lambda x, t: x * (1 - x),
        x0,
        lambda t: x0 / (x0 + (1 - x0) * math.exp(-t)),
        1.0,
        1 / (6 * math.sqrt(3)),
        horizon,
    )


@pytest.mark.parametrize("horizon", [1.0, 3.0])
def test_approximation_bound_is_sharp_for_l_0(horizon):
    """x' = t: L = 0, x'' = 1, and Euler is short by exactly T^2 / (2N)."""
    x0 = torch.zeros(1, dtype=torch.float64)
    error = largest_error(lambda x, t: torch.full_like(x, t), x0, lambda t: t**2 / 2, 8, horizon)
    assert error == pytest.approx(approximation_bound(1.0, 0.0, 8, horizon), rel=1000 * EPS)


def test_approximation_bound_of_a_horizon_rescales_time():
    assert approximation_bound(2.0, 0.7, 9, horizon=3.0) == pytest.approx(approximation_bound(18.0, 2.1, 9))
    assert approximation_bound(2.0, 0.7, 9) == pytest.approx((math.exp(0.7) - 1) / (2 * 9 * 0.7) * 2.0)


def test_approximation_bound_is_continuous_at_0_and_may_be_infinite():
    assert approximation_bound(1.0, 1e-9, 5) == pytest.approx(approximation_bound(1.0, 0.0, 5), rel=1e-8)
    assert approximation_bound(1.0, 1e4, 5) == math.inf


def test_approximation_bound_gives_floats_for_floats_and_tensors_for_tensors():
    assert isinstance(approximation_bound(1.0, 0.5, 4), float)
    bends, constants = torch.tensor([1.0, 2.0]), torch.tensor([0.0, 0.5])
    expected = torch.tensor([approximation_bound(1.0, 0.0, 4, 2.0), approximation_bound(2.0, 0.5, 4, 2.0)])
    torch.testing.assert_close(approximation_bound(bends, constants, 4, 2.0), expected)
    assert approximation_bound(bends, 0.5, 4).shape == (2,)
    assert approximation_bound(1.0, constants, 4).shape == (2,)


@pytest.mark.parametrize("times", [(0.0, 0.5, 1.0, 1.5), (0.0, 0.1, 0.7, 2.0), (3.0, 1.0, 0.5)])
def test_curvature_of_a_parabola_is_exact_on_any_grid(times):
    a, b, c = torch.randn(3, 2, 5, 4, dtype=torch.float64)
    states = [a * t**2 / 2 + b * t + c for t in times]
    torch.testing.assert_close(curvature(states, times), a.flatten(1).norm(dim=-1))


def test_curvature_of_a_solution_grows_to_its_maximum():
    """x'' = x for x' = -x, largest at the start."""
    exact = 1.0
    values = []
    for n in (20, 40, 80):
        times = [i / n for i in range(n + 1)]
        values.append(curvature([torch.full((1,), math.exp(-t), dtype=torch.float64) for t in times], times).item())
    gaps = [exact - value for value in values]
    assert min(gaps) > 0
    assert gaps[0] / gaps[1] == pytest.approx(2, rel=0.05)
    assert gaps[1] / gaps[2] == pytest.approx(2, rel=0.05)


def test_curvature_gives_one_number_per_sample():
    solution = solve(lambda x, t: -x, torch.randn(3, 5, 4), solver="rk4", steps=16, save="all")
    assert curvature(solution.states, solution.times).shape == (3,)


def attention_of(q, k, v):
    attention = DotProductAttention(4, 2).double()
    for projection, values in ((attention.q_proj, q), (attention.k_proj, k), (attention.v_proj, v)):
        projection.weight.data = torch.diag(torch.tensor(values, dtype=torch.float64))
    return attention


def test_weight_bound_by_hand():
    """Two heads of width 2; the first has |W_V| = 3 and |W_K^T W_Q| = 2, the second 1 and 20."""
    attention = attention_of(q=[1.0, 2.0, 5.0, 0.0], k=[1.0, 1.0, 4.0, 9.0], v=[3.0, 1.0, 0.5, 1.0])
    R, N, L, root = 10.0, 12, 0.5, math.sqrt(2)
    heads = [R**2 * value * (R * score + root) / (N**2 * root) for value, score in ((3.0, 2.0), (1.0, 20.0))]
    expected = (math.exp(L) - 1) / (2 * L * N) * max(heads)
    assert weight_bound(attention, R, N).item() == pytest.approx(expected, rel=1000 * EPS)


def test_weight_bound_matches_the_slow_formula():
    attention = DotProductAttention(12, 3).double()
    q, k, v = (p.weight.view(3, 4, 12) for p in (attention.q_proj, attention.k_proj, attention.v_proj))
    heads = [
        25.0
        * torch.linalg.matrix_norm(v[h], ord=2)
        * (5.0 * torch.linalg.matrix_norm(k[h].T @ q[h], ord=2) + 2.0)
        / (64 * 2.0)
        for h in range(3)
    ]
    expected = (math.exp(0.3) - 1) / (2 * 0.3 * 8) * max(heads)
    torch.testing.assert_close(weight_bound(attention, 5.0, 8, lipschitz=0.3), expected)
    assert not weight_bound(attention, 5.0, 8).requires_grad


def test_weight_bound_falls_with_n_cubed():
    attention = DotProductAttention(12, 3)
    assert weight_bound(attention, 10.0, 8) / weight_bound(attention, 10.0, 16) == pytest.approx(8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1.0, 0.5, 4), r"curvature=-1.0; expected numbers >= 0"),
        ((torch.tensor([1.0, math.nan]), 0.5, 4), r"curvature=.*expected numbers >= 0"),
        ((1.0, -0.5, 4), r"lipschitz=-0.5; expected numbers >= 0"),
        ((1.0, 0.5, 0), r"steps=0; expected a whole number, at least 1"),
        ((1.0, 0.5, 2.5), r"steps=2.5; expected a whole number"),
        ((1.0, 0.5, 4, 0.0), r"horizon=0.0; expected a number > 0"),
        ((-1.0, -0.5, 0, math.inf), r"4 problems"),
    ],
)
def test_approximation_bound_refuses_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        approximation_bound(*arguments)


X = torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("states", "times", "message"),
    [
        ([X, X], [0.0, 1.0], r"2 states at 2 times; expected as many of each, at least three"),
        ([X, X, X], [0.0, 1.0], r"3 states at 2 times"),
        ([X, X, X], [0.0, 1.0, 1.0], r"times=\(0.0, 1.0, 1.0\); expected all different and in order"),
        ([X, X, X], [0.0, 2.0, 1.0], r"expected all different and in order"),
        ([X, X, X[:1]], [0.0, 1.0, 2.0], r"expected all alike, \[batch, ...\]"),
        ([X.sum()] * 3, [0.0, 1.0, 2.0], r"expected all alike, \[batch, ...\]"),
    ],
)
def test_curvature_refuses_bad_arguments(states, times, message):
    with pytest.raises(ValueError, match=message):
        curvature(states, times)


@pytest.mark.parametrize("name", sorted(set(ATTENTIONS) - {"dot"}))
def test_weight_bound_refuses_other_attentions(name):
    with pytest.raises(ValueError, match=r"expected DotProductAttention: eq. \(11\) holds for attention='dot'"):
        weight_bound(ATTENTIONS[name](12, 3), 10.0, 8)


@pytest.mark.parametrize(
    ("radius", "steps", "lipschitz", "message"),
    [
        (0.0, 8, 0.5, r"radius=0.0; expected a number > 0"),
        (10.0, 0, 0.5, r"steps=0; expected a whole number"),
        (10.0, 8, -0.5, r"lipschitz=-0.5; expected a number >= 0"),
    ],
)
def test_weight_bound_refuses_bad_arguments(radius, steps, lipschitz, message):
    with pytest.raises(ValueError, match=message):
        weight_bound(DotProductAttention(12, 3), radius, steps, lipschitz)
