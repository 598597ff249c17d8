"""A configuration reports all its problems in one error."""

import pytest

from odevit import OdeViTConfig
from odevit.core.base import DEPTHS
from odevit.errors import ConfigError
from tests.tiny import tiny_config


def test_config_error_lists_all_problems():
    with pytest.raises(ConfigError) as caught:
        tiny_config(solver="eulr", attention="dott", norm="centre", depth="odd", steps=0, horizon=-1, leak=-0.1)
    problems = caught.value.problems
    assert len(problems) == 7
    assert any("unknown solver 'eulr'" in each and "Did you mean 'euler'" in each for each in problems)
    assert any("unknown attention 'dott'; known: cosine, dot, hopfield, l2" in each for each in problems)
    assert any("unknown norm 'centre'" in each and "Did you mean 'center'" in each for each in problems)
    assert any(f"unknown depth 'odd'; known: {', '.join(sorted(DEPTHS))}" in each for each in problems)
    assert any("steps=0; expected a whole number, at least 1" in each for each in problems)
    assert any("horizon=-1; expected a number > 0" in each for each in problems)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_attention_heads": 5}, r"num_attention_heads=5 does not divide hidden_size=32; choose one of \[1, 2, 4"),
        ({"image_size": 18}, r"image_size=18 is not a multiple of the 4 pixels of a token; change patch_size"),
        ({"tokenizer": "conv", "image_size": 18}, r"multiple of the 4 pixels of a token; change tokenizer_channels"),
        ({"use_cls_token": False}, r"pooling='cls' needs use_cls_token=True"),
        ({"num_register_tokens": 0, "register_positions": True}, r"num_register_tokens=0"),
        ({"image_mean": [0.5]}, r"image_mean=\[0.5\]; expected 3 numbers"),
        ({"drop_path": 1.0}, r"drop_path=1.0; expected a probability"),
        ({"output_dropout": -0.1}, r"output_dropout=-0.1; expected a probability"),
        ({"steps": 2.5}, r"steps=2.5; expected a whole number"),
        ({"steps": True}, r"steps=True; expected a whole number"),
        ({"hiden_size": 64}, r"unknown key 'hiden_size'. Did you mean 'hidden_size'"),
        ({"activation": "tanh"}, r"unknown activation 'tanh'; known: gelu, gelu_tanh, quick_gelu, relu, silu"),
        ({"activation": None}, r"unknown activation None"),
        ({"gated": None}, r"gated=None; expected true or false"),
        ({"rope_theta": 0.5}, r"rope_theta=0.5; expected 0 or a number > 1"),
        ({"rope_theta": 100.0, "attention": "l2"}, r"rope_theta=100.0 needs attention='dot' or 'cosine', not 'l2'"),
        ({"vector_blend": "linear"}, r"vector_blend='linear', but vector_knots=None: pass vector_knots=12, say"),
        ({"vector_blend": "curved", "vector_knots": 2}, r"vector_blend='curved'; expected None or one of .*linear"),
        ({"qk_norm": True, "attention": "hopfield"}, r"qk_norm=True needs attention='dot' or 'cosine', not 'hopfield'"),
        ({"rope_theta": 100.0, "num_attention_heads": 16}, r"4 does not divide the 2 channels of one"),
        ({"init": "xavier"}, r"unknown init 'xavier'; known: normal, spectral"),
        ({"knots": 0}, r"knots=0; expected a whole number, at least 1"),
        ({"knots": 2, "blend": "liner"}, r"unknown blend 'liner'; known: constant, linear. Did you mean 'linear'"),
        ({"knots": 3}, r"knots=3, but steps=2: some knots would be passed over; expected knots <= steps"),
        ({"vector_knots": 3}, r"vector_knots=3, but steps=2"),
        (
            {"knots": 2, "knot_times": [0.5, 0.5]},
            r"knot_times=\[0.5, 0.5\]; expected 2 increasing shares of the horizon",
        ),
        ({"knots": 2, "knot_times": [0.0, 1.5]}, r"knot_times=.*each a number >= 0 and <= 1"),
        ({"knots": 2, "knot_times": [0.0]}, r"knot_times=\[0.0\]; expected 2 increasing shares"),
        ({"rank": 4}, r"rank=4, but knots=1 has no changes; pass knots=12"),
        ({"rank": 4, "knots": 2, "vector_knots": 2}, r"leave vector_knots out"),
        ({"fade": 0.1}, r"fade=0.1 and leak=1.0: with a leak, states converge without a fade; pass leak=0"),
        ({"fade": -0.1, "leak": 0.0}, r"fade=-0.1; expected a number >= 0"),
        ({"knots": 2, "depth": "stacked"}, r"knots=2, but depth='stacked' has no integration time; leave it out"),
    ],
)
def test_config_error_names_given_and_expected_values(settings, message):
    with pytest.raises(ValueError, match=message):
        tiny_config(**settings)


def test_unknown_preset_error_lists_presets():
    with pytest.raises(ValueError, match=r"unknown preset 'paper-cifar'; known: .*paper-cifar10"):
        OdeViTConfig.preset("paper-cifar")


def test_config_of_another_architecture_is_refused():
    with pytest.raises(ValueError, match=r"architecture 'vit', expected 'odevit'"):
        OdeViTConfig.from_dict({"model_type": "vit", "hidden_size": 32})
