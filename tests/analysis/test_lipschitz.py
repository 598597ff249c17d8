"""local_lipschitz against dense Jacobians."""

import pytest
import torch

from odevit.analysis.base import differentiable_dynamics, jacobian
from odevit.analysis.lipschitz import local_lipschitz
from odevit.core.attention import ATTENTIONS
from odevit.core.base import Dynamics
from odevit.core.field import VectorField
from odevit.core.layers import NORMS


def test_local_lipschitz_of_a_linear_field_is_its_spectral_norm():
    matrix = torch.randn(6, 6, dtype=torch.float64)
    x = torch.randn(3, 2, 6, dtype=torch.float64)
    dynamics = Dynamics({"linear": lambda x, t, _: x @ matrix.T}, anchor=x)
    measured = local_lipschitz(dynamics, x, iterations=200)
    expected = torch.linalg.matrix_norm(matrix, ord=2).expand(3)
    torch.testing.assert_close(measured.value, expected, rtol=1e-4, atol=0)
    assert (measured.error < 1e-3).all()


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("leak", [0.0, 2.0])
def test_local_lipschitz_is_within_one_percent_of_the_dense_jacobian(attention, norm, leak):
    field = VectorField(8, 2, 2.0, attention=attention, norm=norm, leak=leak).double()
    x = torch.randn(2, 4, 8, dtype=torch.float64)
    measured = local_lipschitz(field, x, iterations=150)
    for sample in range(2):
        one = x[sample : sample + 1]
        jacobian = torch.autograd.functional.jacobian(lambda s, one=one: field.dynamics(one)(s, 0.0), one)
        dense = torch.linalg.matrix_norm(jacobian.reshape(32, 32), ord=2).item()
        assert measured.value[sample].item() == pytest.approx(dense, rel=0.01)


def test_jacobian_products_match_the_dense_jacobian():
    field = VectorField(8, 2, 2.0, leak=2.0).double()
    x, v, u = torch.randn(3, 1, 4, 8, dtype=torch.float64)
    dense = torch.autograd.functional.jacobian(lambda s: field.dynamics(x)(s, 0.0), x).reshape(32, 32)
    push, pull = jacobian(lambda s: differentiable_dynamics(field, x)(s, 0.0), x)
    torch.testing.assert_close(push(v).flatten(), dense @ v.flatten())
    torch.testing.assert_close(pull(u).flatten(), dense.T @ u.flatten())
    assert jacobian(torch.ones_like, x)[0](v).abs().max() == 0, "a velocity that is the same everywhere"


def test_local_lipschitz_changes_nothing():
    field = VectorField(8, 2)
    x = torch.randn(2, 4, 8)
    weights = {name: p.clone() for name, p in field.named_parameters()}
    state = torch.get_rng_state()
    field.train()
    local_lipschitz(field, x, iterations=3)
    assert field.training
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(weights[name], p) and p.grad is None for name, p in field.named_parameters())
