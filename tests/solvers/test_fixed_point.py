"""Searches for fixed points, per sample, and their implicit gradients."""

import math
from functools import partial

import pytest
import torch

from odevit.errors import OdeVitWarning
from odevit.solvers.fixed_point import SEARCHES, FixedPoint, FixedPointState, anderson, broyden, newton_krylov
from odevit.solvers.implicit import implicit, jacobian_size, phantom

PRECISE = {
    "anderson": partial(anderson, memory=8, regularisation=1e-14),
    "broyden": broyden,
    "newton_krylov": newton_krylov,
}
every_search = pytest.mark.parametrize("search", SEARCHES)


def rotation_and_decay(count, size, seed=0):
    """x -> A x + b with a spectral radius just below 1: the plain iteration takes hundreds of steps."""
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(count, size, size, generator=generator, dtype=torch.float64)).Q
    values = torch.linspace(-0.9, 0.99, size, dtype=torch.float64)
    A = basis @ torch.diag(values) @ basis.mT
    b = torch.randn(count, size, generator=generator, dtype=torch.float64)
    exact = torch.linalg.solve(torch.eye(size, dtype=torch.float64) - A, b)
    return A, b, exact


@every_search
def test_search_solves_a_linear_map_in_few_evaluations(search):
    A, b, exact = rotation_and_decay(4, 6)

    def g(x, samples):
        return (A[samples] @ x[..., None]).squeeze(-1) + b[samples]

    found = PRECISE[search](g, torch.zeros(4, 6, dtype=torch.float64), tolerance=1e-8)
    torch.testing.assert_close(found.state, exact, rtol=1e-5, atol=1e-5)
    # 0.99^n < 1e-8 needs 1,800 plain steps.
    assert int(found.evaluations.max()) < 40
    assert (found.residual <= 1e-8).all()


@every_search
def test_converged_samples_are_removed_and_samples_are_independent(search):
    rates = torch.tensor([0.0, 0.5, 0.9], dtype=torch.float64)
    seen = []

    def g(x, samples):
        seen.append(samples.tolist())
        return rates[samples, None] * torch.cos(x)

    x0 = torch.ones(3, 2, dtype=torch.float64)
    found = SEARCHES[search](g, x0, tolerance=1e-10)
    assert found.evaluations[0] < found.evaluations[2]
    assert len(seen[-1]) < 3
    for i in range(3):
        alone = SEARCHES[search](lambda x, _, i=i: rates[i] * torch.cos(x), x0[i : i + 1], tolerance=1e-10)
        torch.testing.assert_close(alone.state[0], found.state[i], rtol=1e-8, atol=1e-8)
    # Dottie's number for 1.0 cos x; here r cos x = x.
    x = 0.5
    for _ in range(200):
        x = 0.9 * math.cos(x)
    torch.testing.assert_close(found.state[2], torch.full((2,), x, dtype=torch.float64), rtol=1e-8, atol=1e-8)


@every_search
def test_converged_sample_keeps_its_result_while_others_continue(search):
    """One sample of nine starts at its fixed point; one alone is not removed from the batch."""
    x0 = torch.ones(9, 2, dtype=torch.float64)
    for _ in range(60):
        x0[0] = 0.9 * torch.cos(x0[0])
    found = SEARCHES[search](lambda x, _: 0.9 * torch.cos(x), x0, tolerance=1e-6)
    alone = SEARCHES[search](lambda x, _: 0.9 * torch.cos(x), x0[:1], tolerance=1e-6)
    assert found.evaluations[0] == alone.evaluations[0] == 1
    assert (found.evaluations[1:] > 1).all()
    assert torch.equal(found.residual[0], alone.residual[0])
    assert torch.equal(found.state[0], x0[0])


@every_search
def test_autocast_applies_to_the_map_and_not_to_the_search(search):
    rates, x0 = torch.linspace(0.1, 0.9, 9)[:, None], torch.ones(9, 4)
    mixed = []

    def g(x, samples):
        mixed.append(torch.is_autocast_enabled("cpu"))
        return rates[samples] * torch.cos(x)  # autocast does not change cos

    plainly = SEARCHES[search](g, x0, tolerance=1e-5)
    assert not any(mixed)
    mixed.clear()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = SEARCHES[search](g, x0, tolerance=1e-5)
    assert all(mixed)
    assert torch.equal(found.state, plainly.state)
    assert torch.equal(found.evaluations, plainly.evaluations)
    assert (found.residual <= 1e-5).all()


@every_search
def test_map_without_fixed_point_has_a_large_residual_and_changes_no_other_sample(search):
    def g(x, samples):
        moved = 0.5 * x + 1.0
        moved[samples == 1] = x[samples == 1] + 1.0  # has no fixed point
        moved[samples == 2] = torch.nan
        return moved

    found = SEARCHES[search](g, torch.ones(3, 3), iterations=20)
    torch.testing.assert_close(found.state[0], torch.full((3,), 2.0), rtol=1e-3, atol=1e-3)
    assert found.residual[1] > 1e-2
    assert found.residual[2] == torch.inf
    assert found.evaluations.tolist()[1:] == [20, 20]
    assert torch.isfinite(found.state).all()


def layer(dtype=torch.float64):
    """g(x) = tanh(x A^T) + b, which contracts, and its parameters."""
    generator = torch.Generator().manual_seed(0)
    A = 0.25 * torch.randn(6, 6, generator=generator, dtype=dtype)
    b = torch.randn(4, 6, generator=generator, dtype=dtype)
    A.requires_grad_()
    return A, b, lambda x, samples=slice(None): torch.tanh(x @ A.T) + b[samples]


def gradient_of(state, A):
    (gradient,) = torch.autograd.grad((state * torch.arange(6.0, dtype=A.dtype)).square().sum(), A)
    return gradient


def distance(a, b):
    return ((a - b).norm() / b.norm()).item()


def rested(search, g, b):
    with torch.no_grad():
        return SEARCHES[search](g, b, tolerance=1e-12, iterations=300)


@every_search
def test_implicit_gradient_equals_the_unrolled_one(search):
    A, b, g = layer()
    x = b
    for _ in range(400):
        x = g(x)
    unrolled = gradient_of(x, A)
    point = rested(search, g, b)
    torch.testing.assert_close(point.state, x.detach(), rtol=1e-9, atol=1e-9)
    state = implicit(g, point.state, SEARCHES[search], tolerance=1e-10, iterations=300)
    assert distance(gradient_of(state, A), unrolled) < 1e-8
    errors = [distance(gradient_of(phantom(g, point.state, steps=k), A), unrolled) for k in (1, 4, 16, 64)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-6 < errors[0]
    damped = phantom(g, point.state, steps=200, damping=0.5)
    assert distance(gradient_of(damped, A), unrolled) < 1e-6


def test_implicit_stops_computing_samples_with_converged_gradients():
    """x = a x + b: a larger a needs more iterations for u. Half of the batch has a = 0, one sample 0.9."""
    rates = torch.tensor([0.0, 0.9, 0.0, 0.5, 0.0, 0.5, 0.0, 0.0], dtype=torch.float64)[:, None]
    scale = torch.ones(1, dtype=torch.float64, requires_grad=True)
    evaluated = []

    def g(x, samples):
        evaluated.append(samples.tolist())
        return scale * rates[samples] * x + 1.0

    def plain(g, x0, *, tolerance, iterations):
        return anderson(g, x0, memory=1, tolerance=tolerance, iterations=iterations)

    x = (1 / (1 - rates)).expand(-1, 3).contiguous()
    state = implicit(g, x, plain, tolerance=1e-9, iterations=1000)
    (found,) = torch.autograd.grad(state.sum(), scale)
    torch.testing.assert_close(found, 3 * (rates / (1 - rates).square()).sum(dim=0))
    assert evaluated == [list(range(8)), [1, 3, 5], [1]]


def test_implicit_warns_and_uses_one_step_if_the_gradient_is_not_found():
    A, b, g = layer()
    point = rested("anderson", g, b)
    short = implicit(g, point.state, anderson, tolerance=1e-10, iterations=2)
    with pytest.warns(OdeVitWarning, match="was not found in 2 evaluations, and such samples have that of one step"):
        found = gradient_of(short, A)
    torch.testing.assert_close(found, gradient_of(phantom(g, point.state, steps=1), A))
    whole = implicit(g, point.state, anderson, tolerance=1e-10, iterations=300)
    with pytest.raises(RuntimeError, match="asks for a second derivative"):
        torch.autograd.grad(whole.sum(), A, create_graph=True)


def test_jacobian_size_equals_the_squared_frobenius_norm():
    torch.manual_seed(0)
    matrix = torch.randn(6, 6, dtype=torch.float64)
    estimate = jacobian_size(lambda x: x @ matrix.T, torch.randn(20_000, 6, dtype=torch.float64))
    assert estimate.item() == pytest.approx(matrix.square().sum().item() / 6, rel=0.02)


def test_implicit_rejects_a_large_solution_of_a_nearly_singular_equation():
    """J = 0.99: any vector has a residual of 0.01 of its length, however long it is."""
    x, weight = torch.ones(1, 4, dtype=torch.float64), torch.tensor(0.99, dtype=torch.float64, requires_grad=True)

    def far(g, x0, **_):
        return FixedPoint(1e6 * x0, torch.full((1,), 0.01), torch.ones(1))

    with pytest.warns(OdeVitWarning, match="have that of one step"):
        (found,) = torch.autograd.grad(implicit(lambda x, _: weight * x, x, far).sum(), weight)
    assert found.item() == 4.0


def test_replace_nonfinite_replaces_samples_with_nan_or_infinity():
    x = torch.full((3, 1000), 100.0, dtype=torch.float16)  # their sum is more than half precision has
    x[1, 7], x[2, :2] = torch.nan, torch.tensor([torch.inf, -torch.inf])
    state = FixedPointState(lambda x, _: x, torch.zeros_like(x))
    x_finite, finite = state.replace_nonfinite(x)
    assert finite.flatten().tolist() == [True, False, False]
    assert torch.equal(x_finite[0], x[0])
    assert x_finite[1:].abs().max() == 0
