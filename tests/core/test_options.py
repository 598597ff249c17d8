"""Options that pretrained blocks have: activations, gates, qk norm, rotary positions."""

import pytest
import torch
import torch.nn.functional as F
from transformers import DINOv3ViTConfig
from transformers.activations import ACT2FN
from transformers.models.dinov3_vit.modeling_dinov3_vit import DINOv3ViTRopePositionEmbedding, apply_rotary_pos_emb

from odevit.attention.rotary import Rotary
from odevit.core.field import VectorField
from odevit.core.layers import ACTIVATIONS, Mlp
from odevit.core.solution import SaveAt
from odevit.core.solve import solve
from odevit.objectives.bounds import dot_product
from odevit.tokens import PrefixLayout, TokenLayout

LAYOUT = PrefixLayout(True, (3, 5), 2, num_appended=1)
OPTIONS = {"activation": "silu", "gated": True, "qk_norm": True, "rotary": Rotary(100.0, LAYOUT), "bias": True}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_equal_those_of_transformers(name):
    x = torch.linspace(-5.0, 5.0, 101)
    theirs = ACT2FN[{"gelu_tanh": "gelu_pytorch_tanh"}.get(name, name)]
    torch.testing.assert_close(ACTIVATIONS[name]()(x), theirs(x))


def test_gated_mlp_equals_its_formula():
    mlp, x = Mlp(8, 2.0, True, "silu", gated=True).double(), torch.randn(2, 3, 8, dtype=torch.float64)
    a, b = x @ mlp.gate_proj.weight.T + mlp.gate_proj.bias, x @ mlp.up_proj.weight.T + mlp.up_proj.bias
    expected = (a / (1 + (-a).exp()) * b) @ mlp.down_proj.weight.T + mlp.down_proj.bias
    torch.testing.assert_close(mlp(x), expected)
    mask = torch.zeros(mlp.mask_shape(x), dtype=torch.float64)
    torch.testing.assert_close(mlp(x, mask), mlp.down_proj.bias.expand_as(x))


def test_rotary_equals_dinov3():
    config = DINOv3ViTConfig(hidden_size=32, num_attention_heads=2, image_size=(12, 20), patch_size=4)
    cos, sin = DINOv3ViTRopePositionEmbedding(config).eval()(torch.zeros(1, 3, 12, 20))
    q, k = torch.randn(2, 2, 2, 18, 16)
    theirs = apply_rotary_pos_emb(q, k, cos, sin)
    rotation = Rotary(config.rope_theta, PrefixLayout(True, (3, 5), 2)).rotation(18, 16, q.device)
    torch.testing.assert_close((Rotary.rotate(q, rotation), Rotary.rotate(k, rotation)), theirs)


def test_rotary_scores_depend_on_relative_positions_only():
    layout = TokenLayout(True, (4, 4), 2)
    rotation = Rotary(10.0, layout).rotation(len(layout), 8, torch.device("cpu"))
    q, k = torch.randn(2, 1, 1, 1, 8).expand(2, 1, 1, len(layout), 8)
    turned = Rotary.rotate(q, rotation), Rotary.rotate(k, rotation)
    for before, after in zip((q, k), turned, strict=True):
        torch.testing.assert_close(after.norm(dim=-1), before.norm(dim=-1))
        assert torch.equal(after[..., layout.cls, :], before[..., layout.cls, :])
        assert torch.equal(after[..., layout.registers, :], before[..., layout.registers, :])
    scores = (turned[0] @ turned[1].mT)[0, 0, layout.patches, layout.patches].unflatten(0, (4, 4)).unflatten(2, (4, 4))
    torch.testing.assert_close(scores[0, 0, 1, 2], scores[2, 1, 3, 3])  # one down, two to the right
    assert (scores[0, 0, 1, 2] - scores[0, 0, 2, 1]).abs() > 1e-3


def test_rotary_takes_other_token_counts_as_square_grids():
    rotary = Rotary(100.0, LAYOUT)
    for tokens, grid in ((19, (3, 5)), (13, (3, 3))):
        square = Rotary(100.0, PrefixLayout(True, grid, 2, num_appended=1))
        found, expected = (each.rotation(tokens, 8, torch.device("cpu")) for each in (rotary, square))
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    with pytest.raises(ValueError, match=r"there are 7 patches, and the positions are those of a grid of 3x5"):
        rotary.rotation(11, 8, torch.device("cpu"))


@pytest.mark.parametrize("attention", ["dot", "cosine"])
def test_field_with_all_options_runs_and_has_gradients(attention):
    """Every weight takes part, maps explain the velocity, and the tables of a trajectory are those of a single call."""
    field, x = VectorField(16, 2, 2.0, attention=attention, **OPTIONS), torch.randn(2, 19, 16)
    maps = []
    seen = field.dynamics(x).with_attention_hook(maps.append)(x, 0.0)
    torch.testing.assert_close(seen, field(x), atol=1e-5, rtol=1e-5)
    branch = field.components["attention"]
    y = branch.norm(x)
    values = field.attention.split(field.attention.v_proj(y))
    mixed = field.attention.o_proj(field.attention.merge(maps[0] @ values))
    torch.testing.assert_close(mixed, field.attention(y), atol=1e-5, rtol=1e-5)
    solve(field, x, solver="rk4", steps=2).state.square().sum().backward()
    assert all(
        weight.grad.abs().sum() > 0 for weight in field.parameters() if weight is not field.attention.k_proj.bias
    )
    assert dot_product(field.attention) is None, "the bounds are of plain scores"


def test_qk_norm_equals_its_formula():
    field = VectorField(16, 2, 2.0, qk_norm=True).double()
    attention, x = field.attention, torch.randn(2, 5, 16, dtype=torch.float64)
    q, k = (F.layer_norm(attention.split(p(x)), (8,), eps=1e-6) for p in (attention.q_proj, attention.k_proj))
    weights = (q @ k.mT / 8**0.5).softmax(-1)
    expected = attention.o_proj(attention.merge(weights @ attention.split(attention.v_proj(x))))
    torch.testing.assert_close(attention(x), expected)


def test_dropout_masks_and_rotations_are_made_once_per_trajectory():
    field, x = VectorField(16, 2, 2.0, attention_dropout=0.5, drop_path=0.5, **OPTIONS).train(), torch.randn(4, 19, 16)
    dynamics = field.dynamics(x)
    assert torch.equal(dynamics(x, 0.0), dynamics(x, 1.0))
    assert not torch.equal(dynamics(x, 0.0), field.dynamics(x)(x, 0.0))


def test_rotary_and_qk_norm_run_under_autocast():
    field, x = VectorField(16, 2, 2.0, **OPTIONS), torch.randn(2, 19, 16)
    exact = solve(field, x, solver="lie_trotter", steps=2, save=SaveAt(attentions=True))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = solve(field, x, solver="lie_trotter", steps=2, save=SaveAt(attentions=True))
        fused = solve(field, x, solver="lie_trotter", steps=2)
    scale = exact.state.abs().max().item()
    for state in (rough.state, fused.state):
        torch.testing.assert_close(state, exact.state, atol=0.05 * scale, rtol=0)
