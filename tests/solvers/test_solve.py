"""solve: what it saves, reports and refuses."""

import math

import pytest
import torch

from odevit.core.field import VectorField
from odevit.core.solution import SaveAt
from odevit.core.solve import solve
from odevit.solvers.penalties import Penalty


def decay(x, t):
    return -x


def test_solve_makes_exactly_n_steps():
    solution = solve(decay, torch.ones(1, dtype=torch.float64), solver="euler", steps=12)
    assert solution.state.item() == pytest.approx((1 - 1 / 12) ** 12, rel=1e-14)
    assert solution.stats.steps == solution.stats.nfe == 12


def test_solve_saves_nothing_by_default():
    solution = solve(decay, torch.ones(2), solver="euler", steps=4)
    assert solution.states == () == solution.attentions
    assert solution.penalties == {}


def test_save_returns_states_and_times():
    solution = solve(decay, torch.ones(1, dtype=torch.float64), solver="euler", steps=4, t0=1.0, t1=3.0, save=[0, 3])
    assert solution.times == (1.0, 2.5)
    assert [state.item() for state in solution.states] == [1.0, pytest.approx(0.5**3)]
    everything = solve(decay, torch.ones(1), solver="euler", steps=4, save="all")
    assert len(everything.states) == 5
    assert torch.equal(everything.states[-1], everything.state)


def test_saved_states_have_gradients_unless_detached():
    x0 = torch.ones(2, requires_grad=True)
    kept = solve(decay, x0, solver="euler", steps=2, save="all").states
    cut = solve(decay, x0, solver="euler", steps=2, save=SaveAt("all", detach=True)).states
    assert all(state.requires_grad for state in kept)
    assert not any(state.requires_grad for state in cut)


class Square(Penalty):
    def running(self, step):
        return step.before.square().mean()


def test_penalty_is_a_mean_over_time_for_any_number_of_steps():
    """1/T int_0^T e^{-2t} dt, approached from the left ends of the steps."""
    x0 = torch.ones(1, dtype=torch.float64)
    exact = (1 - math.exp(-4)) / 4
    errors = [
        abs(solve(decay, x0, solver="rk4", steps=n, t1=2.0, penalties={"s": Square()}).penalties["s"].item() - exact)
        for n in (50, 100, 200)
    ]
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.05)
    assert errors[1] / errors[2] == pytest.approx(2, rel=0.05)


def test_save_attentions_gives_a_map_per_evaluation_with_gradient():
    field = VectorField(16, 2)
    solution = solve(field, torch.randn(2, 5, 16), solver="rk4", steps=3, save=SaveAt(attentions=True))
    assert len(solution.attentions) == solution.stats.nfe == 12
    assert solution.attentions[0].shape == (2, 2, 5, 5)
    solution.attentions[-1][0, 0, 0, 0].backward()
    assert field.attention.q_proj.weight.grad.abs().sum() > 0


def test_saving_attentions_does_not_change_the_trajectory():
    field, x0 = VectorField(16, 2, leak=0.5), torch.randn(2, 5, 16)
    a = solve(field, x0, solver="heun", steps=3).state
    b = solve(field, x0, solver="heun", steps=3, save=SaveAt(attentions=True)).state
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_autocast_keeps_the_state_in_single_precision():
    field, x0 = VectorField(32, 4, leak=1.0), torch.randn(2, 5, 32)
    seen = []
    original = field.dynamics

    def watched(start):
        dynamics = original(start)
        inner = dynamics.components["attention"]

        def component(x, t, observer):
            velocity = inner(x, t, observer)
            seen.append((x.dtype, velocity.dtype))
            return velocity

        return type(dynamics)({**dynamics.components, "attention": component}, dynamics.anchor, dynamics.leak)

    field.dynamics = watched
    for name in ("euler", "heun", "rk4", "lie_trotter", "strang", "exponential_euler", "exponential_heun"):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            mixed = solve(field, x0, solver=name, steps=8, t1=2.0)
        full = solve(field, x0, solver=name, steps=8, t1=2.0).state
        assert mixed.state.dtype == torch.float32
        torch.testing.assert_close(mixed.state, full, rtol=0.05, atol=0.05)
    mixed_calls = [pair for pair in seen if pair[1] == torch.bfloat16]
    assert mixed_calls, "the field should have run in bfloat16"
    assert {state for state, _ in seen} == {torch.float32}


def test_bfloat16_state_stays_bfloat16():
    field = VectorField(16, 2).bfloat16()
    assert solve(field, torch.randn(1, 3, 16).bfloat16(), solver="heun", steps=2).state.dtype == torch.bfloat16


def test_nonfinite_state_gives_a_status_with_a_remedy():
    solution = solve(lambda x, t: x**3, torch.full((1,), 1e10), solver="euler", steps=10)
    assert not solution.ok
    assert "not finite" in solution.status
    assert "more steps" in solution.status


def test_solve_reports_all_problems_together():
    message = r"2 problems(.|\n)*steps=0(.|\n)*t0=1.0, t1=1.0; expected finite times that differ"
    with pytest.raises(ValueError, match=message):
        solve(decay, torch.ones(1), solver="euler", steps=0, t0=1.0, t1=1.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"solver": "hun", "steps": 3}, r"unknown solver 'hun'; known: .*heun.*Did you mean 'heun'"),
        ({"solver": "euler"}, r"needs to know how many; pass steps=12"),
        ({"solver": "euler", "steps": 2.5}, r"steps=2.5; expected a whole number"),
        ({"solver": "euler", "steps": True}, r"steps=True; expected a whole number"),
        ({"solver": "euler", "steps": 2, "t1": float("nan")}, r"expected finite times"),
        ({"solver": "euler", "steps": 2, "adjoint": True}, r"checkpoint=True with a fixed-step"),
        ({"solver": "dopri5", "checkpoint": True}, r"adjoint=True"),
        ({"solver": "tsit5", "adjoint": True}, r"use solver='dopri5'"),
        ({"solver": "dopri5", "penalties": {"s": Square()}}, r"fixed grid"),
        ({"solver": "euler", "steps": 2, "save": [3]}, r"steps \[3\].*0 to 2"),
        ({"solver": "euler", "steps": 2, "save": "some"}, r"expected 'all'"),
    ],
)
def test_solve_errors_name_given_and_expected_values(settings, message):
    with pytest.raises(ValueError, match=message):
        solve(decay, torch.ones(1), **settings)
