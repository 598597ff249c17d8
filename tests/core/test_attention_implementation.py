"""attn_implementation="eager": the same numbers as sdpa, and derivatives of every order."""

import pytest
import torch
import torch.nn.functional as F

from odevit import OdeViTForImageClassification, get_ode_model
from odevit.core.attention import ATTENTIONS
from tests.tiny import tiny_config, tiny_images, tiny_model


@pytest.fixture
def fused_calls(monkeypatch):
    calls = []
    fused = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a, **k: calls.append(1) or fused(*a, **k))
    return calls


@pytest.mark.parametrize("kind", sorted(ATTENTIONS))
def test_eager_attention_equals_sdpa_and_has_second_and_forward_derivatives(kind, fused_calls):
    model, images = tiny_model(attention=kind).double(), tiny_images().double()
    expected = model(images).logits
    assert len(fused_calls) == 2
    model.set_attn_implementation("eager")
    torch.testing.assert_close(model(images).logits, expected, rtol=1e-12, atol=1e-12)
    assert len(fused_calls) == 2

    def logits(pixels):
        return model(pixels).logits

    direction = torch.randn_like(images)
    _, forward = torch.func.jvp(logits, (images,), (direction,))
    h = 1e-6
    difference = (logits(images + h * direction) - logits(images - h * direction)) / (2 * h)
    torch.testing.assert_close(forward, difference, rtol=1e-5, atol=1e-7)
    pixels = images.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(logits(pixels).square().sum(), pixels, create_graph=True)
    (second,) = torch.autograd.grad((gradient * direction).sum(), pixels)
    assert second.isfinite().all()
    assert second.abs().sum() > 0


def test_attn_implementation_is_used_by_new_and_loaded_models(tmp_path, fused_calls):
    tiny_model().save_pretrained(tmp_path)
    loaded = OdeViTForImageClassification.from_pretrained(tmp_path, attn_implementation="eager")
    made = OdeViTForImageClassification(tiny_config(attn_implementation="eager")).eval()
    student = get_ode_model(tiny_model(depth="stacked", leak=0.0, steps=2)).eval()
    student.set_attn_implementation("eager")
    knotted = tiny_model(knots=2)
    with torch.no_grad():
        knotted(tiny_images())  # fills the cache of blends
        fused_calls.clear()
        knotted.set_attn_implementation("eager")
        for model in (loaded, made, student, knotted):
            model(tiny_images())
    assert not fused_calls
    loaded.set_attn_implementation("sdpa")
    loaded(tiny_images())
    assert fused_calls
