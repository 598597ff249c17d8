"""contraction_radius for heads whose decision boundaries are known."""

import math

import pytest
import torch

from odevit.analysis.contraction import contraction_radius
from odevit.core.field import VectorField
from odevit.core.solve import solve
from odevit.errors import ConfigError

ROUNDING = 1e6 * torch.finfo(torch.float64).eps
"""A distance to a boundary is a margin divided by a slope; where the margin is small, the rounding of logits weighs."""


def linear_head(classes, dim):
    weight, bias = torch.randn(classes, dim, dtype=torch.float64), torch.randn(classes, dtype=torch.float64)
    return weight, bias, lambda x: x.flatten(1) @ weight.T + bias


def exact_radius(weight, bias, x):
    """min_c (z_a - z_c) / |w_a - w_c|."""
    z = x.flatten(1) @ weight.T + bias
    answer = z.argmax(dim=1)
    margins = z.gather(1, answer[:, None]) - z
    slopes = (weight[answer][:, None] - weight).norm(dim=-1)
    return (margins / slopes).scatter(1, answer[:, None], math.inf).amin(dim=1)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_contraction_radius_of_a_linear_head_is_the_distance_to_the_boundary(classes):
    weight, bias, logits = linear_head(classes, 12)
    x = torch.randn(20, 3, 4, dtype=torch.float64)
    radius = contraction_radius(logits, x, rivals=9)
    exact = exact_radius(weight, bias, x)
    assert radius.found.all()
    torch.testing.assert_close(radius.value, exact, rtol=0.01, atol=0)
    assert (radius.value >= exact * (1 - ROUNDING)).all()
    assert (radius.random >= exact * (1 - ROUNDING)).all()
    assert (radius.median >= radius.value).all()


def test_answer_changes_at_the_radius_and_not_before():
    _, _, logits = linear_head(5, 6)
    x = torch.randn(30, 6, dtype=torch.float64)
    radius = contraction_radius(logits, x)
    solver_config = radius.value[:, None] * radius.direction
    torch.testing.assert_close(radius.direction.norm(dim=1), torch.ones(30, dtype=torch.float64))
    assert (logits(x + 0.99 * solver_config).argmax(1) == radius.answer).all()
    assert (logits(x + 1.01 * solver_config).argmax(1) == radius.rival).all()
    assert (radius.rival != radius.answer).all()
    inside = solver_config - radius.error[:, None] * radius.direction
    assert (logits(x + inside).argmax(1) == radius.answer).all()
    assert (radius.error < 1e-3 * radius.value).all()


def test_contraction_radius_scales_with_the_state():
    weight, _, _ = linear_head(4, 6)
    x = torch.randn(8, 6, dtype=torch.float64)
    one = contraction_radius(lambda s: s @ weight.T, x)
    ten = contraction_radius(lambda s: s @ weight.T, 10 * x)
    torch.testing.assert_close(ten.value, 10 * one.value, rtol=1e-3, atol=0)


def test_contraction_radius_finds_the_nearest_point_of_an_ellipse():
    """Inside (x/2)^2 + y^2 = 1 the nearest boundary of a point (a, 0), a <= 3/2, is at sqrt(1 - a^2 / 3)."""
    a = torch.tensor([0.3, 0.6, 0.9, 1.2], dtype=torch.float64)
    x = torch.stack([a, torch.full_like(a, 1e-3)], dim=1)

    def logits(s):
        inside = 1.0 - (s[:, 0] / 2).square() - s[:, 1].square()
        return torch.stack([inside, -inside], dim=1)

    radius = contraction_radius(logits, x, iterations=30)
    torch.testing.assert_close(radius.value, (1 - a.square() / 3).sqrt(), rtol=0.02, atol=0)


def test_contraction_radius_works_for_a_saturated_head():
    """tanh bends the margin and leaves its boundary where it was: most ways end near the exact one, none below it."""
    weight, bias, logits = linear_head(2, 6)
    x = torch.randn(100, 6, dtype=torch.float64)
    radius = contraction_radius(lambda s: torch.tanh(logits(s) / 2), x, limit=100.0)
    ratio = radius.value / exact_radius(weight, bias, x)
    assert (ratio > 1 - ROUNDING).all()
    assert ratio.median() < 1.02
    assert ((logits(x + radius.value[:, None] * radius.direction).argmax(1) != radius.answer) | ~radius.found).all()


def test_contraction_radius_is_infinite_for_a_constant_answer():
    """Class 1 wins where the first coordinate is positive; the others have no boundary at all."""
    x = torch.tensor([[-1.0, 0.5], [4.0, 1.0]], dtype=torch.float64)

    def logits(s):
        wins = torch.stack([torch.zeros(len(s), dtype=s.dtype), s[:, 0]], dim=1)
        # The second sample gets the same answer wherever it goes.
        return torch.where(torch.tensor([[True], [False]]), wins, torch.tensor([[1.0, 0.0]], dtype=s.dtype))

    radius = contraction_radius(logits, x)
    assert radius.found.tolist() == [True, False]
    assert radius.value[0].item() == pytest.approx(1.0, rel=1e-3)
    assert radius.value[1].item() == math.inf
    assert radius.rival.tolist() == [1, -1]
    assert (radius.direction[1] == 0).all()
    assert (radius.random[:, 1] == math.inf).all()


def test_contraction_radius_respects_the_limit():
    x = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    head = lambda s: torch.stack([s[:, 0], -s[:, 0] - 4.0], dim=1)  # noqa: E731 (changes its mind at -2, 3 away)
    assert contraction_radius(head, x, limit=4.0).value.item() == pytest.approx(3.0, rel=1e-3)
    assert contraction_radius(head, x, limit=2.9).value.item() == math.inf


def test_contraction_radius_grows_under_a_contracting_flow():
    """Through x' = -x for a time T every distance shrinks by e^-T, so the radius at the start is e^T times larger."""
    _, _, logits = linear_head(4, 6)
    x1 = torch.randn(5, 6, dtype=torch.float64)
    x0 = x1 * math.e

    def through_the_flow(s):
        return logits(solve(lambda x, t: -x, s, solver="rk4", steps=20, t1=1.0).state)

    late, early = contraction_radius(logits, x1, limit=100.0), contraction_radius(through_the_flow, x0, limit=100.0)
    torch.testing.assert_close(early.value, math.e * late.value, rtol=0.01, atol=0)


def test_samples_are_independent_and_inputs_unchanged():
    field = VectorField(8, 2, 1.0).double()
    weight = torch.randn(3, 8, dtype=torch.float64)
    x = torch.randn(4, 5, 8, dtype=torch.float64)

    def logits(s):
        return solve(field, s, solver="euler", steps=2).state.mean(dim=1) @ weight.T

    state = torch.get_rng_state()
    together = contraction_radius(logits, x)
    assert torch.equal(state, torch.get_rng_state())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in field.parameters())
    assert not together.value.requires_grad
    alone = [contraction_radius(logits, one) for one in x.split(1)]
    torch.testing.assert_close(together.value, torch.cat([one.value for one in alone]))
    torch.testing.assert_close(together.random, torch.cat([one.random for one in alone], dim=1))


def test_all_problems_are_reported_together():
    with pytest.raises(ConfigError) as caught:
        contraction_radius(lambda s: s[:, :1], torch.randn(2, 3), iterations=0, rivals=0, directions=0, limit=0.0)
    assert [problem.split("=")[0].split()[0] for problem in caught.value.problems] == [
        "iterations",
        "rivals",
        "directions",
        "limit",
        "logits",
    ]
