"""What every registered penalty fulfils."""

import pytest
import torch

from odevit.core.field import VectorField
from odevit.core.solve import solve
from odevit.objectives.jasmin import JaSMin
from odevit.objectives.penalties import JacobianNorm, Transport
from odevit.objectives.settling import Settling
from odevit.solvers.penalties import PENALTIES


@pytest.mark.parametrize("name", PENALTIES)
def test_every_penalty_is_one_finite_number_with_a_gradient(name):
    field, x0 = VectorField(16, 2).double(), torch.randn(2, 5, 16, dtype=torch.float64)
    for parameter in field.parameters():
        parameter.data.mul_(3.0)  # lively enough that nothing settles on its own
    penalty = PENALTIES[name]()
    solution = solve(field, x0, steps=3, penalties={"cost": penalty})
    cost = solution.penalties["cost"]
    assert cost.shape == ()
    assert cost.isfinite()
    assert cost > 0
    cost.backward()
    assert field.attention.q_proj.weight.grad.abs().max() > 0
    assert penalty == PENALTIES[name](), "a penalty is a value: equal settings are equal"
    assert hash(penalty) == hash(PENALTIES[name]())


@pytest.mark.parametrize(
    ("name", "kind", "running", "needs_attentions"),
    [
        ("jacobian", JacobianNorm, True, False),
        ("jasmin", JaSMin, True, True),
        ("settling", Settling, False, False),
        ("transport", Transport, True, False),
    ],
)
def test_penalties_are_called_per_step_or_at_the_end(name, kind, running, needs_attentions):
    assert PENALTIES[name] is kind
    assert (kind.is_running(), kind.is_terminal()) == (running, not running)
    assert kind.needs_attentions == needs_attentions
