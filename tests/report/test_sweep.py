"""Many ways in few integrations, with the answers that each way gives by itself."""

from dataclasses import replace

import pytest
import torch

from odevit.field import Dynamics, Field
from odevit.report.sweep import (
    Way,
    accurate_way,
    grid_ways,
    own_way,
    solver_ways,
    step_ways,
    stretch_ways,
    sweep,
)
from odevit.solver import SOLVERS, FixedStepSolver, make_solver
from tests.report.small import images, tiny_subject

FIXED = [name for name in SOLVERS if isinstance(make_solver(name), FixedStepSolver)]


@pytest.mark.parametrize("solver", FIXED)
@pytest.mark.parametrize("conditioned", [False, True])
def test_one_long_trajectory_read_at_several_times_is_as_many_separate_ones(solver, conditioned):
    subject = tiny_subject(time_conditioned=conditioned, leak=0.5)
    ways = [Way(solver, n, 0.25 * n) for n in (1, 3, 4, 8)]
    batches = images()
    met = {}
    with torch.no_grad():
        sweep(subject, batches, ways, watch=lambda way, state, x0: met.setdefault(way, []).append((state, x0)))
        for way in ways:
            for batch, (state, x0) in zip(batches, met[way], strict=True):
                torch.testing.assert_close(x0, subject.embed(batch["pixel_values"]))
                alone = subject.solve(x0, solver=way.solver, steps=way.steps, horizon=way.horizon).state
                torch.testing.assert_close(state, alone, rtol=1e-5, atol=1e-6)


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
    subject = tiny_subject(steps=4, horizon=1.0)
    field = Counting(subject.field)
    ways = [*stretch_ways(replace(subject, solver="euler"), [1, 2, 4]), Way("euler", 2, 1.0), Way("euler", 4, 2.0)]
    found = sweep(replace(subject, field=field, solver="euler"), images(6), ways)
    assert field.states == 6 * (16 + 4), "sixteen steps of 1/4, and four of 1/2"
    assert [each.nfe for each in found] == [4, 8, 16, 2, 4]


def test_an_outcome_is_what_its_way_gives():
    subject = tiny_subject(steps=4, horizon=2.0, leak=1.0)
    batches = images(9)
    ways = [Way("rk4", 5, 3.0), own_way(subject), Way("euler", 1, 2.0)]
    found = sweep(subject, batches, ways)
    assert [each.way for each in found] == ways
    with torch.no_grad():
        for each in found:
            answers, labels, own = [], [], []
            for batch in batches:
                x0 = subject.embed(batch["pixel_values"])
                way = {"solver": each.solver, "steps": each.steps, "horizon": each.horizon}
                answers.append(subject.logits(subject.solve(x0, **way).state).argmax(-1))
                own.append(subject.logits(subject.solve(x0).state).argmax(-1))
                labels.append(batch["labels"])
            answers, labels, own = (torch.cat(part) for part in (answers, labels, own))
            assert each.top1 == pytest.approx((answers == labels).double().mean().item())
            assert each.agreement == pytest.approx((answers == own).double().mean().item())
            assert torch.equal(each.right, answers == labels)
            assert each.images == 9
    assert found[1].agreement == 1.0
    assert [each.nfe for each in found] == [20, 4, 1]


def test_embedded_images_need_no_pixels():
    subject = tiny_subject()
    batches = images()
    with torch.no_grad():
        embedded = [{"x0": subject.embed(b["pixel_values"]), "labels": b["labels"]} for b in batches]
    assert sweep(subject, embedded, [own_way(subject)]) == sweep(subject, batches, [own_way(subject)])


class Exploding(Field):
    """dx/dt = 1e20 x."""

    def dynamics(self, x0):
        return Dynamics({"all": lambda x, t, _: 1e20 * x}, anchor=x0)


@pytest.mark.parametrize("solver", ["euler", "dopri5"])
def test_an_answer_that_is_not_finite_is_wrong_and_agrees_with_nothing(solver):
    subject = replace(tiny_subject(), field=Exploding(), solver=solver)
    (found,) = sweep(subject, images(), [Way(solver, 8, 8.0)])
    assert (found.top1, found.agreement, found.finite) == (0.0, 0.0, 0.0)


def test_no_images_are_refused():
    with pytest.raises(ValueError, match="no images"):
        sweep(tiny_subject(), [], [Way("euler", 2, 1.0)])


def test_the_ways_that_are_tried():
    subject = tiny_subject(steps=12, horizon=6.0, solver="lie_trotter")
    assert own_way(subject) in step_ways(subject)
    assert {way.horizon for way in step_ways(subject)} == {6.0}
    assert min(way.steps for way in step_ways(subject)) == 4
    assert max(way.steps for way in step_ways(subject)) == 64
    assert {way.step for way in stretch_ways(subject)} == {0.5}
    assert max(way.horizon for way in stretch_ways(subject)) == 48.0
    tried = {way.solver for way in solver_ways(subject)}
    assert tried == set(FIXED) - {"lie_trotter"}
    assert accurate_way(subject).solver == "dopri5"
    assert own_way(subject) in grid_ways(subject)
    assert len(grid_ways(subject)) == 20
