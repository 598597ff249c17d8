"""The mean of the teacher's blocks, by hand; and that for equal blocks it is the teacher."""

import pytest
import torch
import transformers as hf

from odevit import get_ode_model
from odevit.distill.teacher import Teacher
from odevit.surgery.block_locator import find_blocks
from tests.zoo import WIDE, LikeTimm, images, make, teacher_path

CALLED = {
    "vit": ("attention.q_proj", "attention.o_proj", "mlp.fc1", "layernorm_before"),
    "deit": ("attention.q_proj", "attention.o_proj", "mlp.fc1", "layernorm_before"),
    "clip": ("self_attn.q_proj", "self_attn.out_proj", "mlp.fc1", "layer_norm1"),
    "siglip": ("self_attn.q_proj", "self_attn.out_proj", "mlp.fc1", "layer_norm1"),
    "odevit": (
        "components.attention.body.q_proj",
        "components.attention.body.o_proj",
        "components.mlp.body.up_proj",
        "components.attention.norm",
    ),
}
OURS = (
    "components.attention.body.q_proj",
    "components.attention.body.o_proj",
    "components.mlp.body.up_proj",
    "components.attention.norm",
)


def blocks_of(model):
    return find_blocks(model).blocks(model)


def equal_blocks(model):
    """All blocks as the first."""
    first, *others = blocks_of(model)
    for block in others:
        block.load_state_dict(first.state_dict())
    return model


@pytest.mark.parametrize("name", CALLED)
def test_init_average_sets_every_weight_to_the_mean_of_the_blocks(name):
    model = make(name)
    field = get_ode_model(model, init="average").field
    own = dict(field.named_parameters())
    for theirs, ours in zip(CALLED[name], OURS, strict=True):
        for leaf in ("weight", "bias"):
            blocks = [dict(block.named_parameters())[f"{theirs}.{leaf}"] for block in blocks_of(model)]
            torch.testing.assert_close(own[f"{ours}.{leaf}"], sum(blocks) / 3, atol=1e-6, rtol=1e-6)
    assert sum(value.numel() for value in field.parameters()) == sum(
        value.numel() for value in blocks_of(model)[0].parameters()
    )


def test_init_average_splits_a_fused_qkv():
    model = LikeTimm().eval()
    field = get_ode_model(model, init="average").field
    mean = torch.stack([block.attn.qkv.weight for block in model.blocks]).mean(0)
    for number, projection in enumerate((field.attention.q_proj, field.attention.k_proj, field.attention.v_proj)):
        torch.testing.assert_close(projection.weight, mean[32 * number : 32 * (number + 1)])


def test_init_average_multiplies_a_layer_scale_into_the_projection_or_keeps_it():
    model = make("dinov2")
    with torch.no_grad():
        for block in model.encoder.layer:
            block.layer_scale1.lambda1.uniform_(0.5, 2.0)
    scaled = [block.layer_scale1.lambda1[:, None] * block.attention.o_proj.weight for block in model.encoder.layer]
    folded = get_ode_model(model, init="average").field
    torch.testing.assert_close(folded.attention.o_proj.weight, sum(scaled) / 3, atol=1e-6, rtol=1e-5)
    kept = get_ode_model(model, init="average", residual_scale=1.0).field
    scales = sum(block.layer_scale1.lambda1 for block in model.encoder.layer) / 3
    torch.testing.assert_close(kept.components["attention"].residual_scale, scales)


@pytest.mark.parametrize("name", ["vit", "vit-classifier", "deit", "dinov2", "dinov3", "clip", "siglip", "odevit"])
def test_equal_blocks_give_a_student_with_the_teachers_states(name):
    """One Lie-Trotter step of length 1 is a block, so the mean of equal blocks walks as the teacher does."""
    model, pixels = equal_blocks(make(name)), images()
    student = get_ode_model(model, init="average", horizon=None, steps=3)
    states = teacher_path(student, pixels).states
    for x, h in zip(states, Teacher(model).states(pixels), strict=True):
        torch.testing.assert_close(x, h, atol=1e-5 * h.abs().max().item(), rtol=0)


def test_equal_blocks_with_fused_qkv_give_a_student_with_the_teachers_states():
    model, pixels = equal_blocks(LikeTimm().eval()), images()
    student = get_ode_model(model, init="average", horizon=None, steps=3)
    torch.testing.assert_close(student(pixels), model(pixels), atol=1e-5, rtol=1e-5)


def test_init_average_lists_everything_that_differs():
    with pytest.raises(ValueError, match=r"hidden_size=64, the teacher's is 32") as caught:
        get_ode_model(make("vit"), init="average", hidden_size=64, num_attention_heads=8, attention="l2", norm="rms")
    text = str(caught.value)
    for part in ("num_attention_heads=8, the teacher's is 4", "attention='l2'", "norm='rms', the teacher's is 'layer'"):
        assert part in text
    assert "or pass init='spectral'" in text
    with pytest.raises(ValueError, match=r"up_proj.weight has the shape \(128, 32\).*pass mlp_ratio=4"):
        get_ode_model(make("vit"), init="average", mlp_ratio=2.0)
    with pytest.raises(ValueError, match=r"the field has no .*q_proj.bias.*; pass bias=True"):
        get_ode_model(make("vit"), init="average", bias=False)
    with pytest.raises(ValueError, match=r"the field has no .*gate_proj.bias, the teacher has; pass gated=True"):
        get_ode_model(make("dinov2-gated"), init="average", gated=False)
    with pytest.raises(ValueError, match=r"the teacher's blocks have no components.mlp.body.gate_proj.weight"):
        get_ode_model(make("vit"), init="average", gated=True)


def test_biases_that_the_teacher_lacks_start_at_zero():
    model = hf.ViTModel(hf.ViTConfig(**WIDE, qkv_bias=False)).eval()
    field = get_ode_model(model, init="average").field
    assert torch.equal(field.attention.q_proj.bias, torch.zeros(32))
