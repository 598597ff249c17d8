"""Losses between states, logits and pooled features."""

import pytest
import torch
import torch.nn.functional as F

from odevit.objectives.matching import logit_kl, path_matching, pooled_matching
from odevit.tokens import TokenLayout

LAYOUT = TokenLayout(has_cls=True, grid=(2, 2), num_registers=1)


def states(*offsets):
    """One state per checkpoint, its CLS, patches and register at the given three values."""
    return [
        torch.cat([torch.full((2, 1, 3), c), torch.full((2, 4, 3), p), torch.full((2, 1, 3), r)], dim=1)
        for c, p, r in offsets
    ]


STUDENT = states((1.0, 2.0, 3.0), (0.0, 1.0, 0.0))
TEACHER = states((0.0, 0.0, 0.0), (3.0, 0.0, 2.0))


def test_path_matching_by_hand():
    out = path_matching(STUDENT, TEACHER, LAYOUT, cls=0.45, patches=0.45, registers=0.10)
    first, second = 0.45 * 1 + 0.45 * 4 + 0.1 * 9, 0.45 * 9 + 0.45 * 1 + 0.1 * 4
    assert out["loss"].item() == pytest.approx((first + second) / 2)
    assert out["checkpoints"].tolist() == pytest.approx([first, second])
    assert {group: out[group].item() for group in ("cls", "patches", "registers")} == {
        "cls": 5.0,
        "patches": 2.5,
        "registers": 6.5,
    }


def test_path_matching_defaults_to_the_mse_of_cls():
    student, teacher = (list(torch.randn(3, 2, 6, 5)) for _ in range(2))
    out = path_matching(student, teacher, LAYOUT)
    expected = sum((x[:, 0] - y[:, 0]).square().mean() for x, y in zip(student, teacher, strict=True)) / 3
    torch.testing.assert_close(out["loss"], expected)
    assert set(out) == {"loss", "cls", "checkpoints"}


def test_path_matching_of_one_checkpoint_is_the_last_state():
    assert path_matching(STUDENT[-1:], TEACHER[-1:], LAYOUT)["loss"].item() == pytest.approx(9.0)


def test_path_matching_gradient_is_that_of_the_weighted_groups():
    x, y = (torch.randn(2, 6, 3, requires_grad=True) for _ in range(2))
    out = path_matching([x], [y], LAYOUT, cls=0.0, patches=2.0)
    out["loss"].backward()
    assert y.grad is None
    expected = torch.zeros_like(x)
    expected[:, 1:5] = 2.0 * 2.0 * (x - y)[:, 1:5].detach() / (2 * 4 * 3)
    torch.testing.assert_close(x.grad, expected)
    assert not out["patches"].requires_grad
    assert not out["checkpoints"].requires_grad


def test_path_matching_accepts_a_teacher_without_registers():
    shorter = [y[:, :5] for y in TEACHER]
    asked = {"cls": 0.5, "patches": 0.5}
    assert (
        path_matching(STUDENT, shorter, LAYOUT, **asked)["loss"]
        == (path_matching(STUDENT, TEACHER, LAYOUT, **asked)["loss"])
    )


def test_path_matching_of_half_precision_sums_in_float32():
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
def test_path_matching_refuses_bad_arguments(student, teacher, layout, weights, message):
    with pytest.raises(ValueError, match=message):
        path_matching(student, teacher, layout, **weights)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_logit_kl_matches_torch(temperature):
    student, teacher = torch.randn(2, 5, 10, dtype=torch.float64)
    p, q = (student / temperature).log_softmax(-1), (teacher / temperature).softmax(-1)
    expected = temperature**2 * F.kl_div(p, q, reduction="batchmean")
    torch.testing.assert_close(logit_kl(student, teacher, temperature)["loss"], expected)
    assert expected > 0


def test_logit_kl_is_0_at_equality_and_for_shifted_logits():
    logits = torch.randn(5, 10, dtype=torch.float64)
    assert logit_kl(logits, logits)["loss"].item() == 0.0
    # The shift itself rounds logits of about 6, and so does every logarithm.
    rounding = 16 * torch.finfo(torch.float64).eps * (logits.abs().max().item() + 3.0)
    assert abs(logit_kl(logits + 3.0, logits)["loss"].item()) <= rounding


def test_logit_kl_gradient_keeps_its_size_at_high_temperatures():
    """T^2 KL -> |z - z'|^2 / (2 n) for centred logits and large T."""
    student, teacher = torch.randn(2, 5, 10, dtype=torch.float64)
    student = (student - student.mean(-1, keepdim=True)).requires_grad_()
    teacher = (teacher - teacher.mean(-1, keepdim=True)).requires_grad_()
    logit_kl(student, teacher, 1e4)["loss"].backward()
    torch.testing.assert_close(student.grad, (student - teacher).detach() / 10 / 5, rtol=1e-3, atol=1e-6)
    assert teacher.grad is None


def test_logit_kl_of_certain_answers_is_finite():
    loss = logit_kl(torch.tensor([[1e4, -1e4]]).half(), torch.tensor([[-1e4, 1e4]]).half())["loss"]
    assert loss.item() == pytest.approx(2e4, rel=1e-3)


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), float("inf")])
def test_logit_kl_refuses_bad_temperatures(temperature):
    with pytest.raises(ValueError, match=r"temperature=.*expected a finite number > 0"):
        logit_kl(torch.zeros(2, 3), torch.zeros(2, 3), temperature)


@pytest.mark.parametrize("shape", [(2, 4), (3, 3), (2, 3, 1)])
def test_logit_kl_refuses_different_labels(shape):
    with pytest.raises(ValueError, match=r"student \[2, 3\] and of the teacher.*same labels"):
        logit_kl(torch.zeros(2, 3), torch.zeros(shape))


def test_pooled_matching_divides_by_the_variance():
    """An error of a given share of the variance, in whatever units, is that share; several heads are a mean."""
    torch.manual_seed(0)
    goal = torch.randn(4096, 8, dtype=torch.float64)
    off = goal + 0.5 * torch.randn_like(goal)
    for size in (1.0, 100.0):
        loss = pooled_matching([size * off], [size * goal])["loss"]
        assert loss.item() == pytest.approx(0.25, rel=0.05)
    assert pooled_matching([off, goal], [goal, goal])["loss"].item() == pytest.approx(0.125, rel=0.05)
    # What all images have in common is no variance.
    shifted = pooled_matching([off + 50.0], [goal + 50.0])["loss"]
    assert shifted.item() == pytest.approx(pooled_matching([off], [goal])["loss"].item(), rel=1e-6)


def test_pooled_matching_of_one_image_divides_by_its_mean_square():
    goal = torch.tensor([[3.0, -4.0]])
    assert pooled_matching([torch.zeros(1, 2)], [goal])["loss"].item() == pytest.approx(1.0, rel=1e-5)


def test_pooled_matching_detaches_the_teacher():
    ours, theirs = (torch.randn(4, 3, requires_grad=True) for _ in range(2))
    pooled_matching([ours], [theirs])["loss"].backward()
    assert ours.grad.abs().sum() > 0
    assert theirs.grad is None


@pytest.mark.parametrize("given", [([], []), ([torch.zeros(2, 3)], []), ([torch.zeros(2, 3)], [torch.zeros(2, 4)])])
def test_pooled_matching_refuses_different_shapes(given):
    with pytest.raises(ValueError, match=r"the inputs of the student's heads are .* expected the same shapes"):
        pooled_matching(*given)
