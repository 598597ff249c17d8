"""Many ways in few integrations, with the answers that each way gives on its own."""

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
def test_one_long_trajectory_read_at_several_times_is_as_many_separate_ones(solver, conditioned):
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


def test_ways_with_the_same_step_cost_no_more_than_the_longest():
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


def test_what_rests_costs_a_longer_way_nothing_and_a_shorter_one_no_less():
    """A field that fades away after its horizon of 1.0 is asked five times on a long way, and four times on its own."""
    model = tiny_model(steps=4, horizon=1.0, solver="euler", leak=0.0, fade=0.25)
    ways = horizon_configs(model.solver_config, [1, 2, 8])
    alone = [model.follow(model.embed(images()[0]["pixel_values"]), solver_config).stats.nfe for solver_config in ways]
    assert alone == [4, 5, 5]
    assert [outcome.nfe for outcome in sweep(model, images(), ways)] == alone


def test_an_outcome_is_what_its_way_gives():
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


def test_embedded_images_need_no_pixels():
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
def test_an_answer_that_is_not_finite_is_wrong_and_agrees_with_nothing(solver):
    model = with_field(tiny_model(solver=solver), Exploding())
    (outcome,) = sweep(model, images(), [SolverConfig(solver, 8, 8.0)])
    assert (outcome.top1, outcome.agreement, outcome.finite) == (0.0, 0.0, 0.0)


def test_no_images_are_refused():
    with pytest.raises(ValueError, match="no images"):
        sweep(tiny_model(), [], [SolverConfig("euler", 2, 1.0)])


def test_the_ways_that_are_tried():
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


def test_steps_that_would_skip_a_piece_of_the_weights_have_no_answer():
    model = tiny_model(steps=4, knots=4, blend="constant")
    fine, coarse = sweep(model, images(), [model.solver_config.replace(steps=8), model.solver_config.replace(steps=2)])
    assert (fine.finite, coarse.finite, coarse.agreement) == (1.0, 0.0, 0.0)
