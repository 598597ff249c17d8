"""The penalty Settling."""

import pytest
import torch

from odevit.core.base import Dynamics
from odevit.core.field import VectorField
from odevit.core.solve import solve
from odevit.objectives.settling import Settling


def cost(matrix, *, steps=3, **settings):
    """Of ending anywhere in the linear field f(x) = M x, whose exponents are the real parts of M's eigenvalues."""
    torch.manual_seed(0)
    x0 = torch.randn(64, len(matrix), dtype=torch.float64)
    penalties = {"settling": Settling(step=0.01, turning=2000, **settings)}
    return solve(lambda x, t: x @ matrix.T, x0, steps=steps, t1=0.1, penalties=penalties).penalties["settling"]


@pytest.mark.parametrize("steps", [1, 5])
def test_settling_is_the_squared_excess_of_the_largest_exponent(steps):
    matrix = torch.diag(torch.tensor([0.5, -1.0, -2.0], dtype=torch.float64))
    assert cost(matrix, steps=steps, margin=0.25).item() == pytest.approx(0.75**2, rel=1e-2)


def test_settling_is_0_below_the_margin():
    matrix = torch.diag(torch.tensor([-0.5, -1.0, -2.0], dtype=torch.float64))
    assert cost(matrix, margin=0.4).item() == 0.0
    assert cost(matrix, margin=0.6).item() == pytest.approx(0.1**2, rel=0.1)


def test_settling_gradient_moves_the_largest_exponent():
    rates = torch.tensor([0.5, -1.0, -2.0], dtype=torch.float64, requires_grad=True)
    cost(torch.diag(rates), margin=0.25).backward()
    # d (rate + margin)^2 / d rate = 2 * 0.75
    torch.testing.assert_close(rates.grad, torch.tensor([1.5, 0.0, 0.0], dtype=torch.float64), rtol=2e-2, atol=1e-6)


def test_settling_includes_the_leak():
    """f(x) = M x - leak x: every exponent falls by the leak."""
    matrix = torch.diag(torch.tensor([1.5, 0.0], dtype=torch.float64))
    x0 = torch.zeros(8, 2, dtype=torch.float64)
    dynamics = Dynamics({"linear": lambda x, t, observer: x @ matrix.T}, anchor=x0, leak=1.0)
    settling = Settling(margin=0.1, step=0.01, turning=500)
    start = torch.randn(8, 2, dtype=torch.float64)
    cost = solve(dynamics, start, steps=2, t1=0.1, penalties={"settling": settling}).penalties["settling"]
    assert cost.item() == pytest.approx(0.6**2, rel=0.02)


def test_settling_ignores_autocast():
    """A disturbance of one percent would be lost in bfloat16."""
    field = VectorField(16, 2, leak=0.5)

    def cost():
        torch.manual_seed(0)
        dynamics, x = field.dynamics(torch.randn(4, 5, 16)), torch.randn(4, 5, 16)
        return Settling(margin=2.0).terminal(dynamics, x, 0.5).item()

    expected = cost()
    assert expected > 0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert cost() == expected


def test_settling_has_no_gradient_along_the_path():
    """No gradient reaches the start of the trajectory, and a checkpointed one gives the same gradient to the field."""
    field, x0 = VectorField(16, 2, leak=0.5).double(), torch.randn(4, 5, 16, dtype=torch.float64, requires_grad=True)
    gradients = []
    for checkpoint in (False, True):
        field.zero_grad()
        torch.manual_seed(0)
        penalties = {"settling": Settling(margin=2.0)}
        solve(field, x0, steps=6, penalties=penalties, checkpoint=checkpoint).penalties["settling"].backward()
        gradients.append(field.attention.v_proj.weight.grad.clone())
    assert x0.grad is None
    assert gradients[0].abs().max() > 0
    torch.testing.assert_close(*gradients)
