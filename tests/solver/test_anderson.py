"""Fixed points are found, faster than by going there, and a hard sample does not spoil its neighbours."""

import math

import torch

from odevit.solver import anderson


def rotation_and_decay(count, size, seed=0):
    """x -> A x + b with a spectral radius just below 1: the plain iteration takes hundreds of steps."""
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(count, size, size, generator=generator, dtype=torch.float64)).Q
    values = torch.linspace(-0.9, 0.99, size, dtype=torch.float64)
    A = basis @ torch.diag(values) @ basis.mT
    b = torch.randn(count, size, generator=generator, dtype=torch.float64)
    exact = torch.linalg.solve(torch.eye(size, dtype=torch.float64) - A, b)
    return A, b, exact


def test_it_finds_the_fixed_point_of_a_linear_map_in_about_as_many_steps_as_dimensions():
    A, b, exact = rotation_and_decay(4, 6)

    def g(x, samples):
        return (A[samples] @ x[..., None]).squeeze(-1) + b[samples]

    found = anderson(g, torch.zeros(4, 6, dtype=torch.float64), memory=8, tolerance=1e-8, regularisation=1e-14)
    torch.testing.assert_close(found.state, exact, rtol=1e-5, atol=1e-5)
    # 0.99^n < 1e-8 needs 1,800 plain steps.
    assert int(found.evaluations.max()) < 40
    assert (found.residual <= 1e-8).all()


def test_samples_leave_when_they_are_done_and_do_not_see_each_other():
    rates = torch.tensor([0.0, 0.5, 0.9], dtype=torch.float64)
    seen = []

    def g(x, samples):
        seen.append(samples.tolist())
        return rates[samples, None] * torch.cos(x)

    x0 = torch.ones(3, 2, dtype=torch.float64)
    found = anderson(g, x0, tolerance=1e-10)
    assert found.evaluations[0] < found.evaluations[2]
    assert len(seen[-1]) < 3
    for i in range(3):
        alone = anderson(lambda x, _, i=i: rates[i] * torch.cos(x), x0[i : i + 1], tolerance=1e-10)
        torch.testing.assert_close(alone.state[0], found.state[i], rtol=1e-8, atol=1e-8)
    # Dottie's number for 1.0 cos x; here r cos x = x.
    x = 0.5
    for _ in range(200):
        x = 0.9 * math.cos(x)
    torch.testing.assert_close(found.state[2], torch.full((2,), x, dtype=torch.float64), rtol=1e-8, atol=1e-8)


def test_a_map_without_a_fixed_point_says_so_and_leaves_the_others_alone():
    def g(x, samples):
        moved = 0.5 * x + 1.0
        moved[samples == 1] = x[samples == 1] + 1.0  # goes on for ever
        return moved

    found = anderson(g, torch.ones(2, 3), iterations=20)
    torch.testing.assert_close(found.state[0], torch.full((3,), 2.0), rtol=1e-3, atol=1e-3)
    assert found.residual[1] > 1e-2
    assert found.evaluations[1] == 20
    assert torch.isfinite(found.state).all()
