"""The KL of softened answers."""

import pytest
import torch
import torch.nn.functional as F

from odevit.objectives import logit_kl


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_it_is_that_of_torch(temperature):
    student, teacher = torch.randn(2, 5, 10, dtype=torch.float64)
    p, q = (student / temperature).log_softmax(-1), (teacher / temperature).softmax(-1)
    expected = temperature**2 * F.kl_div(p, q, reduction="batchmean")
    torch.testing.assert_close(logit_kl(student, teacher, temperature)["loss"], expected)
    assert expected > 0


def test_zero_at_equality_and_for_a_shift_of_the_logits():
    logits = torch.randn(5, 10, dtype=torch.float64)
    assert logit_kl(logits, logits)["loss"].item() == 0.0
    assert logit_kl(logits + 3.0, logits)["loss"].item() == pytest.approx(0.0, abs=1e-14)


def test_the_gradient_keeps_its_size_at_high_temperatures_and_does_not_reach_the_teacher():
    """T^2 KL -> |z - z'|^2 / (2 n) for centred logits and large T."""
    student, teacher = torch.randn(2, 5, 10, dtype=torch.float64)
    student = (student - student.mean(-1, keepdim=True)).requires_grad_()
    teacher = (teacher - teacher.mean(-1, keepdim=True)).requires_grad_()
    logit_kl(student, teacher, 1e4)["loss"].backward()
    torch.testing.assert_close(student.grad, (student - teacher).detach() / 10 / 5, rtol=1e-3, atol=1e-6)
    assert teacher.grad is None


def test_sure_answers_are_finite():
    loss = logit_kl(torch.tensor([[1e4, -1e4]]).half(), torch.tensor([[-1e4, 1e4]]).half())["loss"]
    assert loss.item() == pytest.approx(2e4, rel=1e-3)


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), float("inf")])
def test_a_temperature_that_is_none_is_refused(temperature):
    with pytest.raises(ValueError, match=r"temperature=.*expected a finite number > 0"):
        logit_kl(torch.zeros(2, 3), torch.zeros(2, 3), temperature)


@pytest.mark.parametrize("shape", [(2, 4), (3, 3), (2, 3, 1)])
def test_other_labels_are_refused(shape):
    with pytest.raises(ValueError, match=r"student \[2, 3\] and of the teacher.*same labels"):
        logit_kl(torch.zeros(2, 3), torch.zeros(shape))
