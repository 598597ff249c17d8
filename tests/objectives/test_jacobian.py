"""The penalty JacobianNorm."""

import pytest
import torch

from odevit.core.field import VectorField
from odevit.core.solve import solve
from odevit.objectives.penalties import JacobianNorm


@pytest.mark.parametrize("distance", [0.03, 1.0])
def test_jacobian_norm_of_a_linear_field_is_its_frobenius_norm(distance):
    """For f(x) = A x a difference is exact at any distance, and E |A v|^2 = |A|_F^2."""
    torch.manual_seed(0)
    matrix = torch.randn(6, 6, dtype=torch.float64)
    solution = solve(
        lambda x, t: x @ matrix.T,
        torch.randn(20_000, 6, dtype=torch.float64),
        solver="euler",
        steps=1,
        t1=0.1,
        penalties={"jacobian": JacobianNorm(distance)},
    )
    assert solution.penalties["jacobian"].item() == pytest.approx(matrix.square().sum().item() / 6, rel=0.02)


def test_jacobian_norm_matches_the_jacobian_without_leak():
    torch.manual_seed(0)
    field, x = VectorField(8, 2, leak=3.0).double(), torch.randn(1, 4, 8, dtype=torch.float64)
    dense = torch.func.jacfwd(lambda y: field.dynamics(x).with_attention_hook(lambda _: None).forcing(y, 0.0))(x)
    exact = dense.square().sum().item() / x.numel()
    copies = x.expand(20_000, -1, -1).contiguous()
    solution = solve(field, copies, solver="euler", steps=1, t1=0.1, penalties={"jacobian": JacobianNorm(1e-3)})
    assert solution.penalties["jacobian"].item() == pytest.approx(exact, rel=0.03)


def test_training_with_jacobian_norm_reduces_it():
    torch.manual_seed(0)
    field, x = VectorField(8, 2), torch.randn(16, 4, 8)
    optimiser = torch.optim.SGD(field.parameters(), lr=0.5)

    def cost():
        return solve(field, x, steps=2, penalties={"jacobian": JacobianNorm()}).penalties["jacobian"]

    before = cost().item()
    for _ in range(20):
        optimiser.zero_grad()
        cost().backward()
        optimiser.step()
    assert cost().item() < 0.5 * before
