"""problem_type selects the loss as in transformers; without one, labels are indices or probabilities."""

import pytest
import torch
import torch.nn.functional as F

from tests.tiny import tiny_images, tiny_model

MANY = torch.tensor([[1.0, 0, 1, 0, 1], [0, 0, 0, 0, 1], [1, 1, 1, 1, 1]])


@pytest.mark.parametrize(
    ("settings", "labels", "expected"),
    [
        ({"problem_type": "multi_label_classification"}, MANY, F.binary_cross_entropy_with_logits),
        ({"problem_type": "regression"}, MANY, F.mse_loss),
        ({"num_labels": 1}, torch.tensor([0.5, 1.0, -2.0]), lambda z, y: F.mse_loss(z[:, 0], y)),
        ({"problem_type": "single_label_classification"}, torch.tensor([0, 4, 2]), F.cross_entropy),
        ({}, MANY / MANY.sum(1, keepdim=True), F.cross_entropy),
    ],
)
def test_problem_type_selects_the_loss(settings, labels, expected):
    model = tiny_model(**settings)
    output = model(tiny_images(), labels=labels)
    torch.testing.assert_close(output.loss, expected(output.logits, labels))


def test_loss_accepts_indices_and_then_probabilities():
    """As in training with and without mixup: the first kind of labels must not change the config."""
    model, images, numbers = tiny_model(), tiny_images(), torch.tensor([0, 4, 2])
    torch.testing.assert_close(model(images, numbers).loss, model(images, F.one_hot(numbers, 5).double()).loss)
    assert model.config.problem_type is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_pixels_are_cast_to_the_dtype_of_the_weights(dtype):
    model, images = tiny_model(), tiny_images()
    expected = model(images).logits
    output = model.to(dtype)(images, torch.tensor([0, 4, 2]))
    assert output.logits.dtype == dtype
    assert output.loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    rounding = max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)
    assert (output.logits.to(expected) - expected).abs().max() < 50 * rounding * expected.abs().max()
