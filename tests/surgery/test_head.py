"""What a head is given is what it makes its answer of."""

import pytest
import torch
import transformers as hf

from odevit.surgery.block_locator import capture_head_inputs, linear_heads
from odevit.surgery.vit_spec import inspect_vit, parse_output
from tests.zoo import LABELS, WIDE, images, make


def projected(model):
    vit_spec = inspect_vit(model)
    return linear_heads(model, vit_spec.locator, vit_spec.labels)


@pytest.mark.parametrize(
    "name",
    [
        "vit-classifier",
        "deit-classifier",
        "dinov2-classifier",
        "dinov2-registers-classifier",
        "odevit",
        "odevit-options",
    ],
)
def test_capture_head_inputs_records_what_gives_the_logits(name):
    model = make(name)
    (head,) = projected(model)
    with capture_head_inputs([head]) as given, torch.no_grad():
        logits = parse_output(model, model(images())).logits
    (features,) = given
    assert features.ndim == 2
    torch.testing.assert_close(head(features), logits)
    model(images())
    assert len(given) == 1, "nobody listens any longer"


def test_capture_head_inputs_of_two_heads_are_in_order():
    torch.manual_seed(0)
    model = hf.DeiTForImageClassificationWithTeacher(hf.DeiTConfig(**WIDE, **LABELS)).eval()
    heads = projected(model)
    with capture_head_inputs(heads) as given, torch.no_grad():
        logits = model(images()).logits
    assert len(heads) == 2
    torch.testing.assert_close(sum(head(x) for head, x in zip(heads, given, strict=True)) / 2, logits)


def test_linear_heads_exclude_projections_inside_blocks():
    """As many outputs as there are classes, but inside."""
    model = hf.ViTForImageClassification(hf.ViTConfig(**WIDE, num_labels=WIDE["hidden_size"])).eval()
    assert projected(model) == [model.classifier]


@pytest.mark.parametrize("name", ["vit", "dinov2", "clip", "siglip"])
def test_linear_heads_of_an_encoder_are_empty(name):
    assert projected(make(name)) == []
