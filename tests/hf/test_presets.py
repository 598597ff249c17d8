"""The paper's shapes with their true parameter counts."""

import pytest
import torch

from odevit import OdeViTConfig, OdeViTForImageClassification
from odevit.hf.presets import PARAMETERS, PRESETS


@pytest.mark.parametrize("name", PRESETS)
def test_presets_have_the_stated_parameter_counts(name):
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
def test_the_papers_presets_have_the_shapes_of_table_4(name, dim, heads, ratio, registers):
    config = OdeViTConfig.preset(name)
    assert (config.hidden_size, config.num_attention_heads) == (dim, heads)
    assert (config.mlp_ratio, config.num_register_tokens) == (ratio, registers)
    assert (config.image_size, config.patch_size, config.steps) == (224, 16, 24)
    assert (config.norm, config.leak, config.final_norm, config.register_positions) == ("center", 0.0, None, False)


OURS = [name for name in PRESETS if not name.startswith("paper-")]


def test_all_presets_of_ours_are_tested():
    assert OURS == ["tiny-conv", "digits", "small"]


@torch.no_grad()
@pytest.mark.parametrize("name", OURS)
def test_our_presets_converge_to_a_fixed_point_because_of_their_leak(name):
    def distance(horizon, **changes):
        torch.manual_seed(0)
        model = OdeViTForImageClassification(OdeViTConfig.preset(name, **changes)).eval()
        pixels = torch.randn(2, model.config.num_channels, *model.image_size)
        x0 = model.embed(pixels)
        return (model.follow(x0, model.depth.resolve("exponential_euler", int(horizon), horizon)).state - x0).norm()

    torch.testing.assert_close(distance(40.0), distance(20.0), rtol=1e-4, atol=0)
    assert distance(40.0, leak=0.0) > 1.5 * distance(20.0, leak=0.0), "without a leak the state grows with the horizon"
