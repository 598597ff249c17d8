"""Stages of a backbone are times of the trajectory."""

import pytest
import torch
from transformers import AutoBackbone, UperNetConfig, UperNetForSemanticSegmentation

from odevit import OdeViTBackbone, OdeViTForImageClassification
from odevit.core.base import DEPTHS
from tests.hf.family import close, pictures
from tests.tiny import tiny_config, tiny_model


@pytest.mark.parametrize("settings", [{}, {"depth": "stacked"}, {"num_register_tokens": 0}], ids=str)
def test_backbone_stages_are_times(settings, tmp_path):
    """norm(x(t)) of the patches, each at its place, from the checkpoint of a classifier."""
    model, images = tiny_model(steps=4, **settings), pictures()
    model.save_pretrained(tmp_path)
    backbone = OdeViTBackbone.from_pretrained(tmp_path, out_features=["stem", "stage1", "stage4"]).eval()
    found, with_trajectory = backbone(images), model.odevit(images, save=[0, 1, 4])
    assert backbone.channels == [32, 32, 32]
    assert found.hidden_states is None
    patches = model.layout().patches
    for stage, state in zip(found.feature_maps, with_trajectory.trajectory.states, strict=True):
        assert stage.shape == (3, 32, 4, 4)
        close(stage.flatten(2).transpose(1, 2), model.odevit.norm(state)[:, patches])
    everything = backbone(images, output_hidden_states=True)
    assert len(everything.hidden_states) == 5
    assert all(map(torch.equal, everything.feature_maps, found.feature_maps))


def test_backbone_stages_follow_the_steps(tmp_path):
    """What was not chosen is x(T), whatever the steps; what was chosen is saved, checked, and named by its time."""
    config = tiny_config(steps=4, horizon=2.0)
    assert (config.out_features, config.out_indices) == (["stage4"], [4])
    assert config.stages_at([0, 0.5, 2]) == ["stem", "stage1", "stage4"]
    uneven = tiny_config(steps=2, horizon=2.0, grid=[0.0, 0.25, 1.0])
    assert uneven.stages_at([0.5, 2]) == ["stage1", "stage2"]
    with pytest.raises(ValueError, match=r"no stage stands at t = 0.7; expected some of 0, 0.5, 1, 1.5, 2"):
        config.stages_at([0.7])
    assert "out_features" not in config.to_dict()
    OdeViTBackbone(config).save_pretrained(tmp_path)
    assert OdeViTBackbone.from_pretrained(tmp_path, steps=8).out_features == ["stage8"]
    chosen = OdeViTBackbone.from_pretrained(tmp_path, out_indices=[0, -1])
    assert chosen.out_features == ["stem", "stage4"]
    chosen.save_pretrained(tmp_path)
    assert OdeViTBackbone.from_pretrained(tmp_path).out_indices == [0, -1]
    assert OdeViTBackbone.from_pretrained(tmp_path)(pictures()).feature_maps[0].shape == (3, 32, 4, 4)
    with pytest.raises(ValueError, match="subset of stage_names"):
        tiny_config(out_features=["stage9"])
    with pytest.raises(ValueError, match="correspond to the same stages"):
        tiny_config(steps=4, out_features=["stage1", "stage2"], out_indices=[0, 2])


@pytest.mark.parametrize("depth", DEPTHS)
def test_every_depth_is_a_backbone(depth):
    """Its end at least; where states are kept on the way, those as well."""
    model = tiny_model(depth=depth, leak=4.0, on_failure="ignore")
    backbone = AutoBackbone.from_config(model.config).eval()
    backbone.load_state_dict(model.odevit.state_dict())
    images, patches = pictures(), model.layout().patches
    expected = model.odevit(images).last_hidden_state[:, patches]
    close(backbone(images).feature_maps[-1].flatten(2).transpose(1, 2), expected)
    if DEPTHS[depth].has_trajectory:
        backbone.out_indices = range(len(backbone.stage_names))
        assert len(backbone(images).feature_maps) == len(backbone.stage_names)


def test_a_segmenter_of_transformers_on_top(tmp_path):
    """UperNet takes the configuration, trains through the trajectory, and saves both together."""
    staged = tiny_config(steps=4, out_indices=[1, 2, 3, 4])
    small = {"hidden_size": 16, "auxiliary_in_channels": 32, "auxiliary_channels": 8, "pool_scales": [1, 2]}
    model = UperNetForSemanticSegmentation(UperNetConfig(backbone_config=staged, num_labels=3, **small))
    images = pictures()
    output = model(images, labels=torch.zeros(3, 16, 16, dtype=torch.long))
    output.loss.backward()
    assert output.logits.shape == (3, 3, 16, 16)
    assert all(each.grad is not None for each in model.backbone.depth.parameters())
    model.save_pretrained(tmp_path)
    again = UperNetForSemanticSegmentation.from_pretrained(tmp_path).eval()
    close(again(images).logits, model.eval()(images).logits)


def test_a_classifier_loads_a_config_with_stages(tmp_path):
    tiny_model(out_indices=[1]).save_pretrained(tmp_path)
    assert OdeViTForImageClassification.from_pretrained(tmp_path)(pictures()).logits.shape == (3, 5)
