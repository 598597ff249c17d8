"""A folder is complete in itself: weights, config, processor; nothing is fetched, nothing is guessed."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModel,
    AutoModelForImageClassification,
    ViTConfig,
    ViTForImageClassification,
    pipeline,
)

from odevit import OdeViTForImageClassification, OdeViTModel, __version__
from odevit.field import Projection
from tests.model.tiny import tiny_images, tiny_model


def projections(model):
    return [module.weight for module in model.modules() if isinstance(module, Projection)]


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("overrides", [{}, {"depth": "stacked"}, {"attention": "hopfield", "time_conditioned": True}])
def test_save_load_save_gives_the_same_bytes(tmp_path, overrides):
    model = tiny_model(id2label={i: f"class {i}" for i in range(5)}, **overrides)
    model.save_pretrained(tmp_path / "a")
    again = OdeViTForImageClassification.from_pretrained(tmp_path / "a")
    again.save_pretrained(tmp_path / "b")
    assert set(contents(tmp_path / "a")) == {"config.json", "model.safetensors", "preprocessor_config.json"}
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    images = tiny_images()
    torch.testing.assert_close(model(images).logits, again(images).logits, rtol=1e-6, atol=1e-6)


def test_the_config_names_the_version_of_the_library(tmp_path):
    tiny_model().save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["odevit_version"] == __version__


def test_auto_classes(tmp_path):
    model = tiny_model()
    model.save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).hidden_size == 32
    assert isinstance(AutoModelForImageClassification.from_pretrained(tmp_path), OdeViTForImageClassification)
    encoder = AutoModel.from_pretrained(tmp_path)
    assert isinstance(encoder, OdeViTModel)
    images = tiny_images()
    expected = model.odevit(images).last_hidden_state
    torch.testing.assert_close(encoder.eval()(images).last_hidden_state, expected, rtol=0, atol=0)


def test_pipeline_from_a_folder(tmp_path):
    labels = {i: f"class {i}" for i in range(5)}
    mean, std = [0.1, 0.2, 0.3], [0.5, 0.6, 0.7]
    model = tiny_model(id2label=labels, label2id={v: k for k, v in labels.items()}, image_mean=mean, image_std=std)
    model.save_pretrained(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    found = pipeline("image-classification", str(tmp_path))(Image.fromarray(pixels), top_k=5)
    normalised = (torch.tensor(pixels).permute(2, 0, 1) / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(
        std
    ).view(3, 1, 1)
    probabilities = model(normalised.unsqueeze(0)).logits.softmax(-1)[0]
    assert {each["label"] for each in found} == set(labels.values())
    for each in found:
        assert each["score"] == pytest.approx(probabilities[int(each["label"][-1])].item(), abs=1e-5)


def test_the_processor_resizes_to_the_model(tmp_path):
    tiny_model().save_pretrained(tmp_path)
    processor = AutoImageProcessor.from_pretrained(tmp_path)
    pixels = processor(Image.new("L", (50, 31)), return_tensors="pt")["pixel_values"]
    assert pixels.shape == (1, 3, 16, 16)


def test_loading_does_not_initialise_again(tmp_path):
    model = tiny_model()
    with torch.no_grad():
        for weight in projections(model):
            weight.mul_(3.0)
    model.save_pretrained(tmp_path)
    again = OdeViTForImageClassification.from_pretrained(tmp_path)
    for weight in projections(again):
        assert torch.linalg.matrix_norm(weight, ord=2).item() == pytest.approx(3.0, abs=1e-3)


def test_an_encoder_can_be_given_a_new_head(tmp_path):
    tiny_model().odevit.save_pretrained(tmp_path)
    model = OdeViTForImageClassification.from_pretrained(tmp_path, num_labels=9)
    assert model.classifier.weight.shape == (9, 32)


def test_a_checkpoint_of_another_architecture_is_refused(tmp_path):
    config = ViTConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=16)
    ViTForImageClassification(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"architecture 'vit', expected 'odevit'"):
        OdeViTForImageClassification.from_pretrained(tmp_path)


def test_weights_that_do_not_fit_are_refused(tmp_path):
    tiny_model(attention="l2").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "attention": "dot"}))
    with pytest.raises(ValueError, match=r"1 weights are missing \(odevit.depth.field.*k_proj.weight"):
        OdeViTForImageClassification.from_pretrained(tmp_path)
