"""The paper's shapes with their true parameter counts."""

import pytest
import torch

from odevit import OdeViTConfig, OdeViTForImageClassification
from odevit.hf.presets import PARAMETERS, PRESETS


@pytest.mark.parametrize("name", PRESETS)
def test_stated_parameter_counts_are_true(name):
    with torch.device("meta"):
        model = OdeViTForImageClassification(OdeViTConfig.preset(name))
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS[name]


@pytest.mark.parametrize(
    ("name", "dim", "heads", "ratio", "registers"),
    [
        ("paper-cifar10", 192, 8, 1, 1),
        ("paper-cifar100", 768, 8, 1, 1),
        ("paper-imagenet100", 768, 12, 1, 1),
        ("paper-distilled-base", 768, 12, 4, 10),
        ("paper-distilled-small", 768, 12, 1, 10),
    ],
)
def test_table_4(name, dim, heads, ratio, registers):
    config = OdeViTConfig.preset(name)
    assert (config.hidden_size, config.num_attention_heads) == (dim, heads)
    assert (config.mlp_ratio, config.num_register_tokens) == (ratio, registers)
    assert (config.image_size, config.patch_size, config.steps) == (224, 16, 24)
    assert (config.norm, config.leak, config.final_norm, config.register_positions) == ("center", 0.0, None, False)


def test_our_own_presets_have_the_attractor():
    for name in PRESETS:
        if not name.startswith("paper-"):
            config = OdeViTConfig.preset(name)
            assert config.leak > 0
            assert config.norm in ("layer", "rms")
