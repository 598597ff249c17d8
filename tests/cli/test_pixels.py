"""predict, eval, analyze, explore and distill give a model the same pixels for the same image file."""

import json
import shutil
import sys
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from transformers import (
    AutoImageProcessor,
    BeitImageProcessorPil,
    CLIPImageProcessorPil,
    ConvNextImageProcessorPil,
    DeiTImageProcessorPil,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessorPil,
    pipeline,
)
from transformers.image_utils import load_image

from odevit import Teacher, cli, get_ode_model, load
from odevit.distill.distill_task import distill_recipe
from odevit.distill.distillation import compose_distillation
from odevit.explorer.traces import display_image, trace_ode
from odevit.hf.processor import pixels_uint8
from odevit.report.analysis import analyze
from odevit.train.compose import compose_recipe
from odevit.train.splits import evaluation_batches, read_data
from tests.data.formats import drawn, write_pictures
from tests.tiny import tiny_model
from tests.train.start import words

SIDE = 16
SHORTEST = {"shortest_edge": 20}
SQUARE = {"height": SIDE, "width": SIDE}
CROP = {"crop_size": SQUARE, "do_center_crop": True}
PROCESSORS = {
    "vit": ViTImageProcessorPil(size=SQUARE),
    "vit, nearest, other rescaling": ViTImageProcessorPil(size=SQUARE, resample=0, rescale_factor=1 / 127.5),
    "not normalised": ViTImageProcessorPil(size=SQUARE, do_normalize=False),
    "not rescaled": ViTImageProcessorPil(size=SQUARE, do_rescale=False, image_mean=[120.0] * 3, image_std=[60.0] * 3),
    "clip": CLIPImageProcessorPil(size=SHORTEST, **CROP),
    "deit": DeiTImageProcessorPil(size={"height": 20, "width": 20}, **CROP),
    "beit": BeitImageProcessorPil(size={"height": 18, "width": 22}, resample=1, **CROP),
    "convnext": ConvNextImageProcessorPil(size={"shortest_edge": SIDE}, crop_pct=0.7),
    "padded": ViTImageProcessorPil(do_resize=False, crop_size=SQUARE, do_center_crop=True),
}


def save_vit(folder, processor):
    """A tiny ViT with the image processor of another kind beside it, as on the hub."""
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=SIDE, patch_size=4,
        id2label={0: "a", 1: "b"}, label2id={"a": 0, "b": 1},
    )  # fmt: skip
    ViTForImageClassification(config).save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """DATA/{train, test}/{a, b}: the class a has every kind of picture, in the order of `files`."""
    folder = tmp_path_factory.mktemp("pictures")
    for part in ("train", "test"):
        files = write_pictures(folder / part / "a")
        (folder / part / "b").mkdir()
        drawn(30, 50, seed=1).save(folder / part / "b/other.png")
    return folder, files


@contextmanager
def watching():
    """What reaches the first convolution of any model inside this block."""
    seen = []

    def note(module, arguments):
        # A student's readout shows its frozen parts an image of zeros, which no one looks at.
        if isinstance(module, nn.Conv2d) and arguments[0].any():
            seen.append(arguments[0].detach().clone())

    handle = register_module_forward_pre_hook(note)
    try:
        yield seen
    finally:
        handle.remove()


def by_transformers(folder, files):
    """What transformers makes of the files with what lies in the folder."""
    processor = AutoImageProcessor.from_pretrained(folder)
    return torch.cat([processor(load_image(str(file)), return_tensors="pt")["pixel_values"] for file in files])


def close(ours, expected):
    """Equal up to the rounding of float32."""
    torch.testing.assert_close(ours.float(), expected.float(), rtol=1e-5, atol=1e-5)


def check_everyone(folder, pictures, expected=None):
    """predict, eval, analyze, explore, pipelines: all of them show the model of a folder the same pixels."""
    data, files = pictures
    expected = by_transformers(folder, files) if expected is None else expected
    assert expected.unique(dim=0).shape[0] == len(files), "the pictures differ"
    with watching() as seen:
        cli.predict(files, model=folder)
    close(torch.cat(seen), expected)
    with watching() as seen:
        pipeline("image-classification", str(folder))([str(file) for file in files])
    close(torch.cat(seen), expected)
    with watching() as seen:
        cli.evaluate(folder, data=str(data), device="cpu")
    close(seen[0][: len(files)], expected)

    model = load(folder)
    with watching() as seen:
        traces = [trace_ode(model, Image.open(file), file.stem) for file in files]
    # A film ends by showing the states to the head, which needs no pixels: the first are those that were integrated.
    close(torch.cat(seen).unique(dim=0), expected.unique(dim=0))
    assert all(trace.image.size[0] == trace.image.size[1] for trace in traces)


@pytest.mark.parametrize("kind", ["ours", "clip", "vit"])
def test_explore_shows_the_crop_that_the_model_gets(kind, tmp_path):
    model = tiny_model() if kind == "ours" else get_ode_model(Teacher(save_vit(tmp_path, PROCESSORS[kind])).model)
    photograph = drawn(610, 400)
    shown, seen = (
        display_image(model.image_processor, model.image_size, photograph),
        pixels_uint8(model.image_processor, photograph),
    )
    assert shown.size == (256, 256), "as finely as a panel shows it"
    again = np.asarray(shown.resize((SIDE, SIDE), Image.Resampling.BICUBIC), dtype=float).transpose(2, 0, 1)
    assert np.abs(again - seen).mean() < 4, "grey levels"
    exact = display_image(model.image_processor, model.image_size, drawn(SIDE, SIDE))
    if kind == "ours":
        np.testing.assert_array_equal(np.asarray(exact), np.asarray(drawn(SIDE, SIDE)))


@pytest.mark.parametrize("channels", [3, 1])
def test_predict_eval_and_explore_use_the_same_pixels(channels, pictures, tmp_path):
    data, files = pictures
    statistics = {"image_mean": [0.4] * channels, "image_std": [0.3] * channels}
    names = {"id2label": {0: "a", 1: "b"}, "num_labels": 2}
    tiny_model(num_channels=channels, **statistics, **names).save_pretrained(tmp_path / "model")
    check_everyone(tmp_path / "model", pictures)
    if channels == 3:  # what is trained has colours
        recipe = compose_recipe([f"data.source={data}", "data.validation=0"])
        trained = evaluation_batches(read_data(recipe, SIDE), "train", mean=(0.4,) * 3, std=(0.3,) * 3)
        close(next(iter(trained))["pixel_values"][: len(files)], by_transformers(tmp_path / "model", files))


def test_analyze_uses_the_same_pixels(pictures, tmp_path, monkeypatch):
    data, files = pictures
    tiny_model(id2label={0: "a", 1: "b"}, num_labels=2).save_pretrained(tmp_path / "model")
    read = []
    # What follows is measured on these, and takes its time.
    monkeypatch.setattr(
        sys.modules["odevit.report.analysis"], "draw_sample", lambda _, dataset, *rest: read.append(dataset)
    )
    with pytest.raises(TypeError):
        analyze(tmp_path / "model", data=str(data), device="cpu")
    processor = AutoImageProcessor.from_pretrained(tmp_path / "model")
    for file, pixels in zip(files, read[0].test.pixels[: len(files)], strict=True):
        whole = processor(load_image(str(file)), do_rescale=False, do_normalize=False)["pixel_values"][0]
        np.testing.assert_array_equal(pixels.numpy(), whole)


@pytest.mark.parametrize("kind", PROCESSORS)
def test_teacher_and_student_use_the_teachers_processor(kind, pictures, tmp_path):
    data, files = pictures
    vit = save_vit(tmp_path / "vit", PROCESSORS[kind])
    expected = by_transformers(vit, files)
    teacher = Teacher(vit)
    recipe = compose_distillation([f"teacher={vit}", f"data.source={data}", "data.validation=0", "compare=false"])
    read = teacher.normalize(read_data(recipe, teacher.input_format))
    close(next(iter(evaluation_batches(read, "train")))["pixel_values"][: len(files)], expected)

    get_ode_model(teacher.model).save_pretrained(tmp_path / "student")
    assert by_transformers(tmp_path / "student", files).equal(expected), "the student keeps the processor"
    if kind in ("clip", "vit, nearest, other rescaling"):
        check_everyone(tmp_path / "student", pictures, expected)


def test_distill_uses_the_teachers_processor(pictures, tmp_path):
    data, files = pictures
    vit = save_vit(tmp_path / "vit", PROCESSORS["clip"])
    expected = by_transformers(vit, files)
    settings = {
        "teacher": vit, "data.source": data, "data.validation": 0.5, "out": tmp_path / "run", "compare": False,
        "device": "cpu", "train.updates": 1, "train.batch_size": 2, "student.steps": 2, "train.steps": [2],
        "phases": "none", "train.optimizer": "adamw",
    }  # fmt: skip
    with watching() as seen:
        folder = distill_recipe(compose_distillation(words(settings)))
    every = torch.cat([batch for batch in seen if batch.shape[-1] == SIDE])
    for pixels in expected:  # of the test part, at the latest, when the teacher is scored
        assert (every - pixels).abs().amax(dim=(1, 2, 3)).min() < 1e-5
    assert json.loads((folder / "preprocessor_config.json").read_text())["crop_size"] == SQUARE
    with watching() as seen:
        cli.predict(files, model=folder)
    close(torch.cat(seen), expected)


def test_distill_uses_the_configuration_of_an_odevit_teacher(pictures, tmp_path, caplog):
    """Until 0.2 the file beside it stretched pictures, which training never did."""
    _, files = pictures
    tiny_model(depth="stacked", steps=2).save_pretrained(tmp_path / "model")
    new = by_transformers(tmp_path / "model", files)
    ViTImageProcessorPil(size=SQUARE, resample=3).save_pretrained(tmp_path / "model")
    assert not caplog.messages
    teacher = Teacher(tmp_path / "model")
    assert "preprocessor_config.json stretches pictures" in caplog.messages[-1], "pipelines would follow it"
    get_ode_model(teacher.model).save_pretrained(tmp_path / "student")
    assert by_transformers(tmp_path / "student", files).equal(new)
    shutil.copy(tmp_path / "model/preprocessor_config.json", tmp_path / "student")
    for model in (load(tmp_path / "student"), load_own(tmp_path / "model")):
        close(torch.cat([model.pixels_of(Image.open(file)) for file in files]), new)


def load_own(folder):
    model = load(folder)
    model.save_pretrained(folder)  # what is saved again is new
    assert json.loads((folder / "preprocessor_config.json").read_text())["do_center_crop"]
    return model


def test_all_commands_refuse_sixteen_bit_grey_images(tmp_path):
    """transformers' load_image would make them white, silently; a processor that is asked itself refuses."""
    Image.fromarray(np.full((20, 24), 40000, dtype=np.uint16)).save(tmp_path / "deep.png")
    tiny_model().save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match=r"deep\.png' cannot be read as an image: .*not 8 bits"):
        cli.predict([tmp_path / "deep.png"], model=tmp_path / "model")
    with pytest.raises(ValueError, match="not 8 bits"):
        AutoImageProcessor.from_pretrained(tmp_path / "model")(Image.open(tmp_path / "deep.png"))
