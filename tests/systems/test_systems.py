"""Every system by name: gradients, saving, loading, pipelines, and its field or an error."""

import pytest
import torch
from transformers import pipeline

from odevit import OdeViTForImageClassification, load
from odevit.train.compose import compose_recipe, options
from tests.pictures import drawn
from tests.tiny import tiny_config, tiny_images

SIZES = ("hidden_size", "num_heads", "mlp_ratio", "image_size", "patch_size", "num_channels", "tokenizer", "num_labels")
"""What makes a model small, which no system has a say in."""


def make(system):
    """A system as its recipe has it, but small."""
    torch.manual_seed(0)
    plain, settings = (compose_recipe(words).model_settings() for words in ([], [f"system={system}"]))
    own = {key: value for key, value in settings.items() if key not in SIZES and plain.get(key) != value}
    return OdeViTForImageClassification(tiny_config(steps=6, **own))


@pytest.fixture(params=sorted(set(options("system")) - {"none"}))
def model(request):
    return make(request.param)


def test_every_system_has_gradients_for_all_weights(model):
    output = model.train()(tiny_images(4), labels=torch.tensor([0, 1, 2, 0]))
    output.loss.backward()
    assert torch.isfinite(output.loss)
    idle = [name for name, weight in model.named_parameters() if weight.grad is None]
    assert not idle
    assert all(torch.isfinite(weight.grad).all() for weight in model.parameters())
    assert sum(weight.grad.abs().sum() for weight in model.parameters()) > 0


@torch.no_grad()
def test_every_system_is_saved_loaded_and_runs_in_a_pipeline(model, tmp_path):
    images = tiny_images(3)
    torch.manual_seed(1)
    for weight in model.parameters():  # what begins as zero would hide what is lost
        weight.add_(0.02 * torch.randn_like(weight))
    model.eval().save_pretrained(tmp_path)
    again = load(tmp_path)
    assert again.config.to_diff_dict() == model.config.to_diff_dict()
    assert all(torch.equal(weight, again.state_dict()[name]) for name, weight in model.state_dict().items())
    # Another memory alignment may round differently, and a search ends within its tolerance.
    torch.testing.assert_close(again(images).logits, model(images).logits, rtol=1e-3, atol=1e-3)
    answers = pipeline("image-classification", model=str(tmp_path))(drawn("circle", 0))
    assert sum(answer["score"] for answer in answers) == pytest.approx(1.0, abs=1e-4)


def test_every_system_has_a_field_or_an_error_that_says_why_not(model, tmp_path):
    model.save_pretrained(tmp_path)
    if model.depth.has_trajectory:
        assert load(tmp_path).field.describe() == model.field.describe()
        return
    with pytest.raises(ValueError, match="no trajectory") as refused:
        load(tmp_path).field  # noqa: B018 (what odevit analyze asks for first)
    if "odevit.load(folder, depth='ode')" not in str(refused.value):
        assert "because it is not one ODE" in str(refused.value)
        why = "which has weights beside those of its field" if model.depth.shares_field else "they share no field"
        with pytest.raises(ValueError, match=rf"depth='ode' was asked of .*{why}"):
            load(tmp_path, depth="ode")
        return
    with_trajectory = load(tmp_path, depth="ode")
    assert with_trajectory.depth.describe() == with_trajectory.field.describe()


@pytest.mark.parametrize("options", [{"scaling": "layerscale"}, {"block": "rk2_gated"}, {"rank": 2}], ids=str)
def test_tied_depth_with_other_weights_is_refused_as_ode(options, tmp_path):
    model = OdeViTForImageClassification(tiny_config(depth="tied", depth_options=options))
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"weights beside those of its field.*use the depth it was trained with"):
        load(tmp_path, depth="ode")
    with pytest.raises(ValueError, match=r"not one ODE: it has weights beside those of its block \(") as refused:
        load(tmp_path, depth="tied").field  # noqa: B018 (what odevit analyze asks for first)
    assert "odevit.load" not in str(refused.value), "another depth is not possible here"
