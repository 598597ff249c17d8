"""A folder is complete in itself: weights, config, processor; nothing is fetched, nothing is guessed."""

import json
import logging
import os
import subprocess
import sys

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

from odevit import OdeViTForImageClassification, OdeViTModel, __version__, get_ode_model
from tests.tiny import tiny_images, tiny_model

FILES = ("config.json", "model.safetensors", "preprocessor_config.json")


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"depth": "stacked"},
        {"attention": "hopfield", "time_conditioned": True},
        {"knots": 2, "rank": 3},
        {"knots": 2, "blend": "constant", "vector_knots": 2, "vector_blend": "linear"},
    ],
)
def test_save_load_save_gives_the_same_bytes(tmp_path, overrides):
    model = tiny_model(id2label={i: f"class {i}" for i in range(5)}, **overrides)
    model.save_pretrained(tmp_path / "a")
    again = OdeViTForImageClassification.from_pretrained(tmp_path / "a")
    again.save_pretrained(tmp_path / "b")
    assert set(contents(tmp_path / "a")) == {*FILES, "odevit_classes.py"}
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


WITHOUT_IMPORT = """
import json, sys
from pathlib import Path
from transformers import AutoModel, AutoModelForImageClassification, pipeline

model, student, picture, out, results = sys.argv[1:]
found = {"refusals": [], "labels": []}
for folder in (model, student):
    try:
        pipeline("image-classification", folder)
    except ValueError as error:
        found["refusals"].append(str(error))
found["imported by then"] = "odevit" in sys.modules
for folder in (model, student):
    classify = pipeline("image-classification", folder, trust_remote_code=True)
    found["labels"].append([type(classify.model).__name__, classify(picture, top_k=1)[0]["label"]])
classify.model.save_pretrained(out)
# Once it is loaded, odevit is known, and nothing needs to be trusted any more.
autos = (AutoModel, AutoModelForImageClassification)
found["afterwards"] = [type(auto.from_pretrained(model)).__name__ for auto in autos]
Path(results).write_text(json.dumps(found))
"""


def test_pipeline_without_importing_odevit(tmp_path):
    names = {"id2label": {0: "cat", 1: "dog"}, "label2id": {"cat": 0, "dog": 1}}
    model = tiny_model(depth="stacked", num_labels=2, **names)
    with torch.no_grad():
        model.classifier.bias.copy_(torch.tensor([0.0, 50.0]))
    model.save_pretrained(tmp_path / "model")
    get_ode_model(model, steps=2, horizon=1.0).save_pretrained(tmp_path / "student")
    Image.new("RGB", (20, 30)).save(tmp_path / "grey.png")
    words = [str(tmp_path / name) for name in ("model", "student", "grey.png", "again", "results.json")]
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", WITHOUT_IMPORT, *words]
    subprocess.run(command, env=environment, cwd=tmp_path, stdin=subprocess.DEVNULL, check=True)
    found = json.loads((tmp_path / "results.json").read_text())
    assert all("pass the argument `trust_remote_code=True`" in refusal for refusal in found["refusals"])
    assert (len(found["refusals"]), found["imported by then"]) == (2, False)
    assert found["labels"] == [["OdeViTForImageClassification", "dog"], ["OdeStudent", "dog"]]
    assert found["afterwards"] == ["OdeViTModel", "OdeViTForImageClassification"]
    assert set(contents(tmp_path / "again")) == {*FILES, "odevit_classes.py"}, "no source of ours is copied"


def test_the_processor_resizes_to_the_model(tmp_path):
    tiny_model().save_pretrained(tmp_path)
    processor = AutoImageProcessor.from_pretrained(tmp_path)
    pixels = processor(Image.new("L", (50, 31)), return_tensors="pt")["pixel_values"]
    assert pixels.shape == (1, 3, 16, 16)


@pytest.mark.parametrize("options", [{}, {"residual_scale": 0.5, "time_conditioned": True}, {"knots": 2, "steps": 4}])
def test_from_pretrained_initialises_no_weight_again(options, tmp_path):
    model = tiny_model(**options)
    with torch.no_grad():
        for weight in model.parameters():  # values that no initialiser gives, of norms and biases too
            weight.uniform_(2.0, 3.0)
    model.save_pretrained(tmp_path)
    again = OdeViTForImageClassification.from_pretrained(tmp_path)
    saved, loaded = model.state_dict(), again.state_dict()
    assert saved.keys() == loaded.keys()
    assert len(saved) > 15
    for name, weight in saved.items():
        assert torch.equal(loaded[name], weight), name


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


def test_a_checkpoint_with_other_knots_is_refused(tmp_path):
    """In one sentence: the list of weights that transformers prints says that it can be ignored."""
    said, logger = [], logging.getLogger("transformers.modeling_utils")
    heard = logging.Handler()
    heard.emit = lambda record: said.append(record.getMessage())
    logger.addHandler(heard)
    for saved, wanted in ((2, 1), (1, 2), (2, 3)):
        tiny_model(knots=saved, steps=4).save_pretrained(tmp_path)
        with pytest.raises(
            ValueError, match=rf"another number of knots than the configuration, which has knots={wanted}"
        ):
            OdeViTForImageClassification.from_pretrained(tmp_path, knots=wanted)
    assert said == []
    for changed in ({"num_labels": 3, "ignore_mismatched_sizes": True}, {"residual_scale": None}):
        said.clear()
        tiny_model(residual_scale=1.0).save_pretrained(tmp_path / "loads")
        OdeViTForImageClassification.from_pretrained(tmp_path / "loads", **changed)
        assert any("LOAD REPORT" in each for each in said), "a new head, or what is left out, is mentioned"
    logger.removeHandler(heard)


def test_knots_start_equal_and_are_loaded_as_saved(tmp_path):
    model, images = tiny_model(knots=2, steps=4), tiny_images()
    field = model.odevit.depth.field
    for first, second in zip(*(knot.parameters() for knot in field.knots), strict=True):
        assert torch.equal(first, second)
        torch.nn.init.normal_(second, std=0.1)
    model.save_pretrained(tmp_path)
    again = OdeViTForImageClassification.from_pretrained(tmp_path)
    assert torch.equal(again(images).logits, model(images).logits)
    faded = OdeViTForImageClassification.from_pretrained(tmp_path, fade=0.1, leak=0.0)
    assert torch.equal(faded(images, steps=8, horizon=2.0).logits, faded(images, steps=32, horizon=8.0).logits)
