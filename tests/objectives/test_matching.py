"""Path matching is a weighted mean of squares, written out by hand."""

import pytest
import torch

from odevit.model import TokenLayout
from odevit.objectives import path_matching

LAYOUT = TokenLayout(has_cls=True, grid=(2, 2), num_registers=1)


def states(*offsets):
    """One state a checkpoint, its CLS, patches and register at the given three values."""
    return [
        torch.cat([torch.full((2, 1, 3), c), torch.full((2, 4, 3), p), torch.full((2, 1, 3), r)], dim=1)
        for c, p, r in offsets
    ]


STUDENT = states((1.0, 2.0, 3.0), (0.0, 1.0, 0.0))
TEACHER = states((0.0, 0.0, 0.0), (3.0, 0.0, 2.0))


def test_by_hand():
    out = path_matching(STUDENT, TEACHER, LAYOUT, cls=0.45, patches=0.45, registers=0.10)
    first, second = 0.45 * 1 + 0.45 * 4 + 0.1 * 9, 0.45 * 9 + 0.45 * 1 + 0.1 * 4
    assert out["loss"].item() == pytest.approx((first + second) / 2)
    assert out["checkpoints"].tolist() == pytest.approx([first, second])
    assert {group: out[group].item() for group in ("cls", "patches", "registers")} == {
        "cls": 5.0,
        "patches": 2.5,
        "registers": 6.5,
    }


def test_by_itself_it_is_the_mean_square_distance_of_cls():
    student, teacher = (list(torch.randn(3, 2, 6, 5)) for _ in range(2))
    out = path_matching(student, teacher, LAYOUT)
    expected = sum((x[:, 0] - y[:, 0]).square().mean() for x, y in zip(student, teacher, strict=True)) / 3
    torch.testing.assert_close(out["loss"], expected)
    assert set(out) == {"loss", "cls", "checkpoints"}


def test_one_checkpoint_is_the_last_state_alone():
    assert path_matching(STUDENT[-1:], TEACHER[-1:], LAYOUT)["loss"].item() == pytest.approx(9.0)


def test_the_gradient_is_that_of_the_groups_asked_for_and_not_the_teachers():
    x, y = (torch.randn(2, 6, 3, requires_grad=True) for _ in range(2))
    out = path_matching([x], [y], LAYOUT, cls=0.0, patches=2.0)
    out["loss"].backward()
    assert y.grad is None
    expected = torch.zeros_like(x)
    expected[:, 1:5] = 2.0 * 2.0 * (x - y)[:, 1:5].detach() / (2 * 4 * 3)
    torch.testing.assert_close(x.grad, expected)
    assert not out["patches"].requires_grad
    assert not out["checkpoints"].requires_grad


def test_a_teacher_without_registers_is_matched_in_the_rest():
    shorter = [y[:, :5] for y in TEACHER]
    asked = {"cls": 0.5, "patches": 0.5}
    assert (
        path_matching(STUDENT, shorter, LAYOUT, **asked)["loss"]
        == (path_matching(STUDENT, TEACHER, LAYOUT, **asked)["loss"])
    )


def test_half_precision_is_summed_in_single():
    student, teacher = [torch.full((1, 6, 3), 400.0).half()], [torch.zeros(1, 6, 3).half()]
    assert path_matching(student, teacher, LAYOUT)["loss"].item() == 160_000.0


@pytest.mark.parametrize(
    ("student", "teacher", "layout", "weights", "message"),
    [
        (STUDENT, TEACHER, TokenLayout(False, (2, 3), 0), {}, r"cls=1.0, but the layout has no such.*pass cls=0.0"),
        (STUDENT, TEACHER, TokenLayout(True, (1, 5), 0), {"registers": 0.1}, r"registers=0.1, but the layout has no"),
        (STUDENT, TEACHER, LAYOUT, {"patches": -1.0}, r"patches=-1.0; expected a weight >= 0"),
        (STUDENT, TEACHER, LAYOUT, {"patches": float("nan")}, r"patches=nan; expected a weight"),
        (STUDENT, TEACHER, LAYOUT, {"cls": 0.0}, r"all weights are 0.*cls=1.0"),
        (STUDENT, TEACHER[1:], LAYOUT, {}, r"2 states of the student and 1 of the teacher"),
        ([], [], LAYOUT, {}, r"0 states of the student and 0.*at least one"),
        (STUDENT, [y[:1] for y in TEACHER], LAYOUT, {}, r"checkpoint 0: .*same batch and dim"),
        (STUDENT, [y[0] for y in TEACHER], LAYOUT, {}, r"expected two of \[batch, token, dim\]"),
        (STUDENT, [y[:, :4] for y in TEACHER], LAYOUT, {}, r"checkpoint 1: .*6 tokens.*5 or 6 of the teacher"),
        (STUDENT, [y[:, :5] for y in TEACHER], LAYOUT, {"registers": 0.1}, r"6 tokens of the student and 6 of the"),
    ],
)
def test_bad_arguments_say_what_was_given_and_what_to_do(student, teacher, layout, weights, message):
    with pytest.raises(ValueError, match=message):
        path_matching(student, teacher, layout, **weights)
