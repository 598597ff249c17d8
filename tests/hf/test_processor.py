"""What an image processor says is understood by others, and what others say is honoured or refused."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from transformers import (
    AutoImageProcessor,
    BitImageProcessorPil,
    CLIPImageProcessorPil,
    Dinov2Config,
    Dinov2ForImageClassification,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessorPil,
)

from odevit import Teacher, get_ode_model
from odevit.bundled import bundled_models
from odevit.hf.processor import (
    OdeViTImageProcessor,
    check_processor,
    find_processor,
    make_image_processor,
    pixels_uint8,
    shape_of,
    square_processor,
    statistics_of,
)
from tests.data.formats import drawn
from tests.tiny import tiny_config, tiny_model

SIDE = 16
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 4}


def vit(folder, content=None, **settings):
    model = ViTForImageClassification(ViTConfig(**SMALL, intermediate_size=32, image_size=SIDE, **settings)).eval()
    model.save_pretrained(folder)
    if content is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(content))
    return model


def test_a_saved_processor_is_loaded_by_transformers_alone(tmp_path):
    """By ViT's processor of transformers, for pictures as its load_image reads them."""
    tiny_model().save_pretrained(tmp_path)
    assert type(AutoImageProcessor.from_pretrained(tmp_path)) is OdeViTImageProcessor
    plain, ours = ViTImageProcessorPil.from_pretrained(tmp_path), make_image_processor(tiny_config())
    for picture in (drawn(), drawn(40, 61), drawn(SIDE, SIDE), drawn(7, 5)):
        expected = plain(picture, return_tensors="pt")["pixel_values"]
        assert torch.equal(ours(picture, return_tensors="pt")["pixel_values"], expected)
        assert np.array_equal(pixels_uint8(ours, picture), (expected[0] * 0.5 + 0.5).mul(255).round().numpy())


def test_the_processor_takes_arrays():
    picture, processor = drawn(), square_processor(SIDE)
    expected = processor(picture, return_tensors="pt")["pixel_values"]
    assert torch.equal(processor(np.asarray(picture), return_tensors="pt")["pixel_values"], expected)
    assert processor([picture, picture], return_tensors="pt")["pixel_values"].shape == (2, 3, SIDE, SIDE)


def test_bundled_models_come_with_the_processor_of_their_configuration():
    """Their images are squares, so the stretching that 0.2 wrote did the same."""
    assert "cifar10" in bundled_models()
    for folder in bundled_models().values():
        config = json.loads((folder / "config.json").read_text())
        ours = square_processor(config["image_size"], image_mean=config["image_mean"], image_std=config["image_std"])
        assert json.loads((folder / "preprocessor_config.json").read_text()) == json.loads(ours.to_json_string())
        other = square_processor(config["image_size"] + 1, image_mean=config["image_mean"], image_std=[1.0] * 3)
        assert other.to_json_string() != ours.to_json_string(), "the comparison sees sizes and statistics"


def test_statistics_are_fractions_of_full_scale():
    given = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.6, 0.7]}
    assert statistics_of(ViTImageProcessorPil(**given)).mean == (0.1, 0.2, 0.3)
    doubled = statistics_of(ViTImageProcessorPil(**given, rescale_factor=2 / 255))
    assert doubled.mean == pytest.approx((0.05, 0.1, 0.15))
    assert doubled.std == pytest.approx((0.25, 0.3, 0.35))
    assert statistics_of(ViTImageProcessorPil(**given, do_normalize=False)).std == (1.0,) * 3
    assert statistics_of(ViTImageProcessorPil(**given, do_rescale=False)).std == pytest.approx(
        (0.5 / 255, 0.6 / 255, 0.7 / 255)
    )


def test_find_processor_reads_files_of_older_transformers(tmp_path):
    """Without a class, with a size that is a number, and of a class that only torchvision has."""
    model = vit(tmp_path, {"size": SIDE, "resample": 2, "image_mean": [0.4] * 3, "image_std": [0.3] * 3})
    processor = find_processor(tmp_path, model)
    assert shape_of(processor) == (3, SIDE, SIDE)
    assert statistics_of(processor).mean == (0.4,) * 3
    get_ode_model(ViTForImageClassification.from_pretrained(tmp_path)).save_pretrained(tmp_path / "student")
    kept = AutoImageProcessor.from_pretrained(tmp_path / "student")
    np.testing.assert_array_equal(pixels_uint8(kept, drawn()), pixels_uint8(processor, drawn()))

    dino = {
        "size": {"height": SIDE, "width": SIDE},
        "image_processor_type": "DINOv3ViTImageProcessorFast",
        "resample": 2,
    }
    vit(tmp_path / "dino", dino)
    found = pixels_uint8(find_processor(tmp_path / "dino", model), drawn()).astype(int)
    assert np.abs(found - pixels_uint8(processor, drawn())).max() <= 1


class Timm(nn.Module):
    """What a timm model says of its pictures."""

    def __init__(self, **about):
        super().__init__()
        means = {"mean": (0.4,) * 3, "std": (0.2,) * 3}
        self.pretrained_cfg = {
            "input_size": (3, 224, 224),
            "crop_pct": 0.9,
            "interpolation": "bicubic",
            **means,
            **about,
        }


def test_timm_models_resize_and_crop_as_their_configuration_says():
    wide = Image.fromarray(np.asarray(drawn(610, 400)))
    resized = wide.resize((int(248 * 610 / 400), 248), Image.Resampling.BICUBIC)  # 248 = floor(224 / 0.9)
    left, top = (resized.width - 224) // 2, 12
    cropped = np.asarray(resized)[top : top + 224, left : left + 224].transpose(2, 0, 1)
    processor = find_processor("", Timm())
    np.testing.assert_array_equal(pixels_uint8(processor, wide), cropped)
    assert statistics_of(processor).std == (0.2,) * 3
    squashed = find_processor("", Timm(crop_mode="squash", crop_pct=1.0, interpolation="bilinear"))
    stretched = np.asarray(wide.resize((224, 224), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    np.testing.assert_array_equal(pixels_uint8(squashed, wide), stretched)
    with pytest.raises(ValueError, match="timm's crop_mode='border' at 224x224 cannot be had here"):
        find_processor("", Timm(crop_mode="border"))


def test_processors_that_do_more_than_resize_and_crop_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"makes pictures of different sizes \(.*set crop_size"):
        shape_of(CLIPImageProcessorPil(size={"shortest_edge": 20}, do_center_crop=False))

    class Brighter(ViTImageProcessorPil):
        def normalize(self, image, *arguments, **options):
            return super().normalize(image, *arguments, **options) ** 2

    with pytest.raises(ValueError, match="Brighter does more to a picture than resize, crop, rescale and normalise"):
        check_processor(Brighter(size={"height": SIDE, "width": SIDE}))
    vit(tmp_path, {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}})
    with pytest.raises(
        ValueError, match=r"makes pictures of 3 x 32 x 32, which it does not take; expected 3 x 16 x 16"
    ):
        Teacher(tmp_path)
    vit(tmp_path / "odd", {"image_processor_type": "NobodysImageProcessor"})
    with pytest.raises(ValueError, match=r"odd cannot be loaded by transformers: Unrecognized image processor"):
        Teacher(tmp_path / "odd")


def test_a_teacher_gets_images_of_the_size_of_its_processor(tmp_path):
    """DINOv2 was made for 518 pixels, and its processor makes 224."""
    config = Dinov2Config(**SMALL, image_size=32, num_labels=4)
    Dinov2ForImageClassification(config).save_pretrained(tmp_path)
    crop = {"height": SIDE, "width": SIDE}
    BitImageProcessorPil(size={"shortest_edge": 18}, crop_size=crop).save_pretrained(tmp_path)
    teacher = Teacher(tmp_path)
    assert (teacher.vit_spec.size, teacher.vit_spec.tokens) == ((SIDE, SIDE), 17)
    student = get_ode_model(teacher.model).eval()
    assert student.image_size == (SIDE, SIDE)
    pixels = student.pixels_of(drawn())
    assert len(student.layout()) == student.embed(pixels).shape[1] == 17
    assert student(pixels).logits.shape == (1, 4)
