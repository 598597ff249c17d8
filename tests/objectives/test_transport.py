"""The penalty Transport."""

import math

import pytest
import torch

from odevit.core.field import VectorField
from odevit.core.solve import solve
from odevit.objectives.penalties import Transport


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("horizon", [1.0, 3.0])
@pytest.mark.parametrize("name", ["euler", "rk4", "strang"])
def test_transport_of_a_constant_velocity_is_its_square(steps, horizon, name):
    velocity = torch.tensor([3.0, 4.0], dtype=torch.float64)
    x0 = torch.zeros(5, 2, dtype=torch.float64)
    solution = solve(
        lambda x, t: velocity.expand_as(x),
        x0,
        solver=name,
        steps=steps,
        t1=horizon,
        penalties={"transport": Transport()},
    )
    assert solution.penalties["transport"].item() == pytest.approx((9 + 16) / 2)


def test_transport_approaches_the_integral_from_below():
    """1/T int_0^T |e^{-t}|^2 dt = (1 - e^{-2T}) / (2T), and the mean of a square is at least the square of the mean."""
    exact = (1 - math.exp(-4)) / 4
    costs = [
        solve(
            lambda x, t: -x,
            torch.ones(1, dtype=torch.float64),
            solver="rk4",
            steps=n,
            t1=2.0,
            penalties={"transport": Transport()},
        )
        .penalties["transport"]
        .item()
        for n in (10, 20, 40)
    ]
    errors = [exact - cost for cost in costs]
    assert min(errors) > 0
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.05)
    assert errors[1] / errors[2] == pytest.approx(4, rel=0.05)


def test_transport_matches_the_released_code_for_euler():
    """sum_m h |f(x_m)|^2 / numel."""
    field, x = VectorField(16, 2), torch.randn(2, 5, 16)
    solution = solve(field, x, solver="euler", steps=4, penalties={"transport": Transport()})
    expected = 0.0
    for _ in range(4):
        velocity = field(x)
        expected = expected + 0.25 * velocity.norm() ** 2 / velocity.numel()
        x = x + 0.25 * velocity
    torch.testing.assert_close(solution.penalties["transport"], expected)
    solution.penalties["transport"].backward()
    assert all(p.grad.abs().sum() > 0 for name, p in field.named_parameters() if name.endswith("weight"))
