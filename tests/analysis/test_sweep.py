"""sweep gives the answers of every solver config in few integrations."""

import pytest
import torch

from odevit.analysis.sweep import accurate_config, grid_configs, horizon_configs, solver_configs, step_configs, sweep
from odevit.core.base import SOLVERS, Dynamics, Field, FixedStepSolver
from odevit.core.solver_config import SolverConfig, make_solver
from odevit.solvers.adaptive import Dopri5
from tests.report.small import images
from tests.tiny import tiny_model

FIXED = [name for name in SOLVERS if isinstance(make_solver(name), FixedStepSolver)]


@pytest.mark.parametrize("solver", FIXED)
@pytest.mark.parametrize("conditioned", [False, True])
def test_sweep_of_one_long_trajectory_equals_separate_solves(solver, conditioned):
    model = tiny_model(time_conditioned=conditioned, leak=0.5)
    ways = [SolverConfig(solver, n, 0.25 * n) for n in (1, 3, 4, 8)]
    batches = images()
    met = {}
    with torch.no_grad():
        sweep(
            model,
            batches,
            ways,
            callback=lambda solver_config, state, x0: met.setdefault(solver_config, []).append((state, x0)),
        )
        for solver_config in ways:
            for batch, (state, x0) in zip(batches, met[solver_config], strict=True):
                torch.testing.assert_close(x0, model.embed(batch["pixel_values"]))
                torch.testing.assert_close(state, model.follow(x0, solver_config).state, rtol=1e-5, atol=1e-6)


def with_field(model, field):
    model.depth.field = field
    return model


class Counting(Field):
    """A field that counts the states it is asked about."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.states = inner, 0

    def dynamics(self, x0):
        dynamics = self.inner.dynamics(x0)

        def component(x, t, observer):
            self.states += len(x)
            return dynamics.forcing(x, t)

        return Dynamics({"all": component}, anchor=x0, leak=dynamics.leak)


def test_sweep_shares_the_trajectory_of_equal_steps():
    model = tiny_model(steps=4, horizon=1.0, solver="euler")
    field = Counting(model.field)
    ways = [
        *horizon_configs(model.solver_config, [1, 2, 4]),
        SolverConfig("euler", 2, 1.0),
        SolverConfig("euler", 4, 2.0),
    ]
    outcomes = sweep(with_field(model, field), images(6), ways)
    assert field.states == 6 * (16 + 4), "sixteen steps of 1/4, and four of 1/2"
    assert [outcome.nfe for outcome in outcomes] == [4, 8, 16, 2, 4]


def test_sweep_counts_no_evaluations_of_a_static_field():
    """A field that fades away after its horizon of 1.0 is asked five times on a long way, and four times on its own."""
    model = tiny_model(steps=4, horizon=1.0, solver="euler", leak=0.0, fade=0.25)
    ways = horizon_configs(model.solver_config, [1, 2, 8])
    alone = [model.follow(model.embed(images()[0]["pixel_values"]), solver_config).stats.nfe for solver_config in ways]
    assert alone == [4, 5, 5]
    assert [outcome.nfe for outcome in sweep(model, images(), ways)] == alone


def test_sweep_outcomes_match_the_model_called_with_each_config():
    model = tiny_model(steps=4, horizon=2.0, leak=1.0)
    batches = images(9)
    ways = [SolverConfig("rk4", 5, 3.0), model.solver_config, SolverConfig("euler", 1, 2.0)]
    outcomes = sweep(model, batches, ways)
    assert [outcome.solver_config for outcome in outcomes] == ways
    labels = torch.cat([batch["labels"] for batch in batches])
    with torch.no_grad():
        own, *_ = answers = [
            torch.cat(
                [
                    model(batch["pixel_values"], solver_config=solver_config, return_dict=True).logits.argmax(-1)
                    for batch in batches
                ]
            )
            for solver_config in (model.solver_config, *ways)
        ]
    for outcome, answer in zip(outcomes, answers[1:], strict=True):
        assert outcome.top1 == pytest.approx((answer == labels).double().mean().item())
        assert outcome.agreement == pytest.approx((answer == own).double().mean().item())
        assert torch.equal(outcome.right, answer == labels)
        assert outcome.to_dict().items() >= {**outcome.solver_config.to_dict(), "images": 9, "stable": None}.items()
    assert outcomes[1].agreement == 1.0
    assert [outcome.nfe for outcome in outcomes] == [20, 4 * make_solver(model.solver_config.solver).evaluations(2), 1]


def test_sweep_accepts_embedded_images():
    model = tiny_model()
    batches = images()
    with torch.no_grad():
        embedded = [{"x0": model.embed(b["pixel_values"]), "labels": b["labels"]} for b in batches]
    assert sweep(model, embedded, [model.solver_config]) == sweep(model, batches, [model.solver_config])


class Exploding(Field):
    """dx/dt = 1e20 x."""

    def dynamics(self, x0):
        return Dynamics({"all": lambda x, t, _: 1e20 * x}, anchor=x0)


@pytest.mark.parametrize("solver", ["euler", "dopri5"])
def test_sweep_counts_answers_that_are_not_finite_as_wrong(solver):
    model = with_field(tiny_model(solver=solver), Exploding())
    (outcome,) = sweep(model, images(), [SolverConfig(solver, 8, 8.0)])
    assert (outcome.top1, outcome.agreement, outcome.finite) == (0.0, 0.0, 0.0)


def test_sweep_refuses_no_images():
    with pytest.raises(ValueError, match="no images"):
        sweep(tiny_model(), [], [SolverConfig("euler", 2, 1.0)])


def test_config_lists_of_the_report():
    own = SolverConfig("lie_trotter", 12, 6.0)
    steps = step_configs(own)
    assert own in steps
    assert {solver_config.horizon for solver_config in steps} == {6.0}
    assert (
        min(solver_config.steps for solver_config in steps),
        max(solver_config.steps for solver_config in steps),
    ) == (4, 64)
    assert step_configs(own.replace(solver="dopri5")) == [own.replace(solver="dopri5")], (
        "an adaptive solver chooses its own"
    )
    assert {solver_config.step for solver_config in horizon_configs(own)} == {0.5}
    assert max(solver_config.horizon for solver_config in horizon_configs(own)) == 48.0
    assert {solver_config.name for solver_config in solver_configs(own)} == set(FIXED) - {"lie_trotter"}
    assert (
        accurate_config(own)
        == accurate_config(own.replace(solver=Dopri5(rtol=1e-1)))
        == SolverConfig("dopri5", 12, 6.0)
    )
    assert own in grid_configs(own)
    assert len(grid_configs(own)) == 20


def test_sweep_gives_no_answer_for_steps_that_skip_knots():
    model = tiny_model(steps=4, knots=4, blend="constant")
    fine, coarse = sweep(model, images(), [model.solver_config.replace(steps=8), model.solver_config.replace(steps=2)])
    assert (fine.finite, coarse.finite, coarse.agreement) == (1.0, 0.0, 0.0)
