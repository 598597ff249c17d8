"""Losses between attention maps against their definitions."""

import math

import pytest
import torch
import torch.nn.functional as F

from odevit.objectives.attention_matching import attention_kl, attention_l1, mass_threshold

EPS = torch.finfo(torch.float64).eps


def maps(heads=3):
    return torch.randn(2, heads, 4, 7, dtype=torch.float64).softmax(-1)


def test_attention_l1_uses_the_smallest_set_that_holds_the_mass():
    teacher = torch.tensor([[0.1, 0.4, 0.3, 0.2], [0.05, 0.05, 0.8, 0.1]]).view(1, 1, 2, 4)
    student = torch.full((1, 1, 2, 4), 0.25)
    out = attention_l1(student, teacher, mass=0.6)
    # Keys 1 and 2 hold 0.7 of the first row, key 2 alone holds 0.8 of the second.
    assert out["loss"].item() == pytest.approx(((0.15 + 0.05) + 0.55) / 2)
    assert out["keys"].item() == 1.5


def test_attention_l1_of_a_slice_takes_mass_of_the_slice():
    teacher, student = maps(), maps()
    half = attention_l1(0.5 * student, 0.5 * teacher, mass=0.6)
    whole = attention_l1(student, teacher, mass=0.6)
    assert half["keys"] == whole["keys"]
    torch.testing.assert_close(2 * half["loss"], whole["loss"])


def test_attention_l1_at_mass_1_is_the_l1_distance():
    student, teacher = maps(), maps()
    out = attention_l1(student, teacher, mass=1.0)
    torch.testing.assert_close(out["loss"], (student - teacher).abs().sum(-1).mean())
    assert out["keys"].item() == 7


def test_attention_l1_matches_the_slow_definition():
    student, teacher = maps(), maps()
    total = 0.0
    for p, q in zip(student.reshape(-1, 7), teacher.reshape(-1, 7), strict=True):
        held = 0.0
        for j in q.argsort(descending=True):
            if held >= 0.6:
                break
            held += q[j]
            total += (p[j] - q[j]).abs() / 24
    torch.testing.assert_close(attention_l1(student, teacher)["loss"], total)


def test_attention_kl_matches_torch():
    student, teacher = maps(), maps()
    expected = F.kl_div(student.log(), teacher, reduction="none").sum(-1).mean()
    torch.testing.assert_close(attention_kl(student, teacher)["loss"], expected)


def test_attention_kl_of_a_slice_normalises_rows():
    student, teacher = maps()[..., 1:], maps()[..., 1:]
    p, q = student / student.sum(-1, keepdim=True), teacher / teacher.sum(-1, keepdim=True)
    torch.testing.assert_close(attention_kl(student, teacher)["loss"], attention_kl(p, q)["loss"])
    assert attention_kl(student, teacher)["loss"] > 0


@pytest.mark.parametrize("objective", [attention_l1, attention_kl])
def test_attention_losses_are_0_at_equality_and_detach_the_teacher(objective):
    assert objective(teacher := maps(), teacher)["loss"].item() == 0.0
    logits = torch.randn(2, 3, 4, 7, dtype=torch.float64, requires_grad=True)
    teacher_logits = torch.randn(2, 3, 4, 7, dtype=torch.float64, requires_grad=True)
    loss = objective(logits.softmax(-1), teacher_logits.softmax(-1))["loss"]
    assert loss > 0
    loss.backward()
    assert logits.grad.abs().sum() > 0
    assert teacher_logits.grad is None


@pytest.mark.parametrize("objective", [attention_l1, attention_kl])
def test_attention_losses_average_heads_of_different_numbers(objective):
    student, teacher = maps(heads=2), maps(heads=6)
    expected = objective(student.mean(1, keepdim=True), teacher.mean(1, keepdim=True))["loss"]
    torch.testing.assert_close(objective(student, teacher)["loss"], expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_attention_losses_of_one_hot_rows_are_finite(dtype):
    logits = (1e4 * torch.eye(4)).expand(1, 2, 4, 4).clone().requires_grad_()
    loss = attention_kl(logits.softmax(-1).to(dtype), torch.eye(4).flip(0).expand(1, 2, 4, 4).to(dtype))["loss"]
    loss.backward()
    assert loss.item() == pytest.approx(math.log(1e12), rel=1e-4)
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("mass", [0.1, 0.6, 0.95, 1.0])
def test_mass_threshold_is_sufficient_and_minimal(mass):
    rows = torch.rand(50, 16, dtype=torch.float64)
    chosen = mass_threshold(rows, mass)
    held, total = (rows * chosen).sum(-1), rows.sum(-1)
    # The mask sums in order of size, this test in order of place: they may differ by the rounding of 16 additions.
    slack = 16 * EPS * total
    assert (held >= mass * total - slack).all()
    smallest = rows.masked_fill(~chosen, torch.inf).amin(-1)
    assert (held - smallest < mass * total + slack).all(), "without its smallest member it does not hold it"
    assert (smallest >= rows.masked_fill(chosen, -torch.inf).amax(-1)).all(), "no larger one was left out"


@pytest.mark.parametrize("mass", [0.0, -0.1, 1.1, float("nan")])
@pytest.mark.parametrize(
    "refuses",
    [lambda mass: mass_threshold(torch.rand(3, 4), mass), lambda mass: attention_l1(maps(), maps(), mass=mass)],
)
def test_mass_threshold_refuses_masses_outside_0_to_1(refuses, mass):
    with pytest.raises(ValueError, match=r"mass=.*expected a share of the row in \(0, 1\]"):
        refuses(mass)


@pytest.mark.parametrize("objective", [attention_l1, attention_kl])
@pytest.mark.parametrize("cut", [lambda m: m[:1], lambda m: m[:, :, :2], lambda m: m[..., 1:], lambda m: m[0]])
def test_attention_losses_refuse_maps_of_different_shapes(objective, cut):
    with pytest.raises(ValueError, match=r"student \[2, 3, 4, 7\], teacher \[.*differ in their heads at most"):
        objective(maps(), cut(maps()))
