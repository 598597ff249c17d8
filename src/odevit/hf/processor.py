"""(crop(resize(picture)) / 255 - mean) / std: the image processor, from picture to pixel_values.

Training, evaluation, prediction, films and pipelines all use the same one: `OdeViTImageProcessor` for models of odevit,
the ViT's own for any other ViT and its student. Pictures are turned upright and converted to 8 bits first. Data stay in
8 bits until they are augmented: `pixels_uint8` gives those, and `statistics_of` normalises them.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass
from math import floor
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_hub import hf_hub_download, try_to_load_from_cache
from PIL import Image, ImageOps
from torch import nn
from transformers import AutoImageProcessor, PreTrainedConfig, ViTImageProcessorPil
from transformers.image_processing_utils import BaseImageProcessor

from odevit.core.base import HOOKS
from odevit.core.configuration_odevit import OdeViTConfig

logger = logging.getLogger(__name__)

PROCESSOR = "preprocessor_config.json"
EIGHT_BIT = frozenset({"1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV"})
ORIENTATION = 0x0112  # of EXIF
SLIVER = 200
"""A picture whose sides have at least this ratio is refused: with its shortest side at 224 it would take gigabytes."""
STATISTICS = ("image_mean", "image_std", "do_normalize", "do_rescale", "rescale_factor")
LIKE_VIT = ("DINOv3ViTImageProcessor",)
"""Processors that transformers has for torchvision only, and that do the same as ViT's."""


def upright(picture: Image.Image) -> Image.Image:
    """The picture in RGB, turned by its EXIF orientation, without alpha, as by transformers' `load_image`."""
    if picture.mode not in EIGHT_BIT:
        raise ValueError(f"pixels of mode {picture.mode!r} are not 8 bits per channel")
    if max(picture.size) > SLIVER * min(picture.size):
        raise ValueError(f"{picture.width}x{picture.height} pixels are a line; expected a picture")
    if picture.getexif().get(ORIENTATION, 1) != 1:
        picture = ImageOps.exif_transpose(picture)
    return picture if picture.mode == "RGB" else picture.convert("RGB")


class OdeViTImageProcessor(ViTImageProcessorPil):
    """The shortest side to S, bicubic and antialiased; the centred S x S; upright, in RGB, or grey for one channel.

    Its file can also be loaded without odevit, by `ViTImageProcessorPil.from_pretrained(folder)`, which gives the same
    for upright RGB pictures.
    """

    resample = Image.Resampling.BICUBIC
    default_to_square = False
    size = {"shortest_edge": 224}  # noqa: RUF012 (transformers expects a dictionary)
    crop_size = {"height": 224, "width": 224}  # noqa: RUF012
    do_center_crop = True
    do_convert_rgb = True

    def process_image(
        self, image: Any, do_convert_rgb: bool | None = None, input_data_format: Any = None, **kwargs: Any
    ) -> np.ndarray:
        """uint8 [channel, height, width] of a picture as it is in a file."""
        if isinstance(image, Image.Image):
            image = upright(image) if do_convert_rgb else upright(image).convert("L")
        return super().process_image(image, do_convert_rgb, input_data_format, **kwargs)


@dataclass(frozen=True)
class PixelStatistics:
    """mean and std of each channel, as fractions of full scale."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def near(self, other: PixelStatistics, tolerance: float = 5e-3) -> bool:
        """Whether two statistics are equal up to rounding, about one grey level."""
        ours, theirs = (*self.mean, *self.std), (*other.mean, *other.std)
        same_channels = len(self.mean) == len(other.mean) and len(self.std) == len(other.std)
        return same_channels and all(abs(a - b) <= tolerance for a, b in zip(ours, theirs, strict=True))


def square_processor(side: int, **options: Any) -> OdeViTImageProcessor:
    """The processor of a model of odevit with S x S images."""
    return OdeViTImageProcessor(
        size={"shortest_edge": side}, crop_size={"height": side, "width": side}, do_center_crop=True, **options
    )


@HOOKS.register("image_processor")
def make_image_processor(config: Any) -> OdeViTImageProcessor:
    """The image processor of a model of odevit, from its configuration. Needs no torchvision."""
    if not config.image_mean or not config.image_std:
        raise ValueError(
            "the configuration has no image_mean and image_std, the statistics of the training images; expected them, "
            "or a preprocessor_config.json with them beside the weights"
        )
    size = config.image_size
    height, width = (size, size) if isinstance(size, int) else size
    options: dict[str, Any] = {"image_mean": list(config.image_mean), "image_std": list(config.image_std)}
    options["do_convert_rgb"] = config.num_channels == 3
    if height == width:
        return square_processor(height, **options)
    return OdeViTImageProcessor(size={"height": height, "width": width}, do_center_crop=False, **options)


def find_processor(source: str | Path, model: nn.Module, *, download: bool = False) -> BaseImageProcessor | None:
    """The image processor that a model was trained with; None if it is not known.

    For a model of odevit it is made from the configuration, since the file that releases up to 0.2 wrote stretches
    pictures and training never did. For others it is loaded from the model's folder or the hub's cache; for a timm
    model it is made from its `pretrained_cfg`.
    """
    config: Any = getattr(model, "config", None)
    if isinstance(config, OdeViTConfig):
        return make_image_processor(config)
    for name in (PROCESSOR, "processor_config.json"):
        path = _find(str(source), name, download)
        if path is not None:
            return _load(path.parent, config)
    timm: Any = getattr(model, "pretrained_cfg", None)
    if not isinstance(timm, dict) or not timm.get("mean") or not timm.get("std"):
        return None
    own = getattr(getattr(model, "patch_embed", None), "img_size", None)  # create_model(..., img_size=) changes it here
    return _timm_processor(timm, tuple(own or timm["input_size"][-2:]))


@HOOKS.register("save_processor")
def save_processor(processor: BaseImageProcessor, folder: str | os.PathLike[str]) -> None:
    """Write a model's image processor into a folder, unless there is one of another origin, which is kept.

    It is of odevit if it is the one of the config.json beside it, or one that releases up to 0.2 wrote.
    """
    path = Path(folder) / PROCESSOR
    old, new = _read(path), json.loads(processor.to_json_string())
    if old and old != new and not _stretches(old) and old != _expected(path.parent):
        logger.warning("%s stays, though the model was trained with another one; delete it to have that written", path)
        return
    processor.save_pretrained(folder)


def warn_stretching(folder: str | Path) -> None:
    """Log a warning if pipelines would stretch pictures that are not square, which the model was not trained for."""
    path = _find(str(folder), PROCESSOR, download=False)
    if path is not None and _stretches(_read(path)):
        logger.warning(
            "%s stretches pictures that are not square, as odevit up to 0.2 wrote it. odevit does not follow it, "
            "pipelines do; write it anew: odevit.load(%r).save_pretrained(%r)",
            *(path, str(folder), str(folder)),
        )


def _read(path: Path) -> dict[str, Any]:
    """The content of a processor's file; empty if it cannot be read."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _stretches(content: dict[str, Any]) -> bool:
    return content.get("image_processor_type") == "ViTImageProcessor" and "height" in content.get("size", {})


def _expected(folder: Path) -> Any:
    """The content of the processor's file for the config.json of a folder; None without one of odevit."""
    try:
        return json.loads(make_image_processor(OdeViTConfig.from_pretrained(folder)).to_json_string())
    except (OSError, ValueError, TypeError):
        return None


def _find(source: str, name: str, download: bool) -> Path | None:
    if not source:  # made from a configuration; Path("") would be the current folder
        return None
    if Path(source).is_dir():
        file = Path(source) / name
        return file if file.is_file() else None
    try:
        path = hf_hub_download(source, name) if download else try_to_load_from_cache(source, name)
    except (OSError, ValueError):  # no such file, or no name of a repository
        return None
    return Path(path) if isinstance(path, str) else None


def _load(folder: Path, config: Any) -> BaseImageProcessor:
    content, _ = ViTImageProcessorPil.get_image_processor_dict(folder)
    named = content.pop("image_processor_type", None) or content.get("feature_extractor_type")
    # Old files do not name their class: it is that of the model in the folder.
    about = {"config": config} if named is None and isinstance(config, PreTrainedConfig) else {}
    try:
        return AutoImageProcessor.from_pretrained(folder, **about)
    except (ImportError, ValueError, OSError) as error:
        if str(named).removesuffix("Fast") in LIKE_VIT:
            return ViTImageProcessorPil(**content)
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"the image processor in {folder} cannot be loaded by transformers: {reason}") from error


def _timm_processor(about: dict[str, Any], size: tuple[int, ...]) -> OdeViTImageProcessor:
    """Resize(floor(S / crop_pct)), CenterCrop(S), as timm evaluates; mode "squash" stretches instead."""
    height, width = size
    mode, share = about.get("crop_mode") or "center", about.get("crop_pct") or 0.875
    if mode not in ("center", "squash") or (height != width and mode == "center"):
        raise ValueError(
            f"timm's crop_mode={mode!r} at {height}x{width} cannot be had here; expected 'center' and a square, or "
            "'squash'"
        )
    taller, wider = floor(height / share), floor(width / share)
    return OdeViTImageProcessor(
        size={"shortest_edge": taller} if mode == "center" else {"height": taller, "width": wider},
        crop_size={"height": height, "width": width},
        resample=Image.Resampling[(about.get("interpolation") or "bilinear").upper()],
        image_mean=list(about["mean"]),
        image_std=list(about["std"]),
        do_convert_rgb=len(about["mean"]) == 3,
    )


def pixels_uint8(processor: BaseImageProcessor, picture: Image.Image, finer: int = 1) -> np.ndarray:
    """uint8 [channel, height, width]: a picture resized and cropped by a processor, before it rescales and normalises.

    `finer` multiplies the resolution of the same view, for display.
    """
    about: Any = processor
    picture = _readable(about, picture)
    own = isinstance(processor, OdeViTImageProcessor) and about.do_convert_rgb and finer == 1
    if own and dict(about.size) == {"shortest_edge": picture.height} and _pair(about.crop_size) == picture.size[::-1]:
        return np.asarray(picture).transpose(2, 0, 1)  # a fast path for data sets of such squares
    larger: dict[str, Any] = {
        name: {side: finer * length for side, length in dict(getattr(about, name)).items()}
        for name in ("size", "crop_size")
        if finer > 1 and getattr(about, name, None)
    }
    made = about(picture, do_rescale=False, do_normalize=False, **larger)["pixel_values"][0]
    return np.asarray(made)


@HOOKS.register("pixel_values")
def pixel_values(processor: BaseImageProcessor, picture: Image.Image) -> Any:
    """float [1, channel, height, width]: the input of a model."""
    about: Any = processor
    return about(_readable(about, picture), return_tensors="pt")["pixel_values"]


def _readable(processor: Any, picture: Image.Image) -> Image.Image:
    """Upright, and grey for a model of one channel; processors of transformers do neither."""
    picture = upright(picture)
    mean = processor.image_mean
    grey = not isinstance(processor, OdeViTImageProcessor) and isinstance(mean, list | tuple) and len(mean) == 1
    return picture.convert("L") if grey else picture


def _pair(size: Any) -> tuple[int, int]:
    return int(size["height"]), int(size["width"])


def statistics_of(processor: BaseImageProcessor) -> PixelStatistics:
    """mean, std such that (pixels / 255 - mean) / std is the processor's result: with r its rescale factor,
    (pixels r - m) / s = (pixels / 255 - m / 255 r) / (s / 255 r).
    """
    about: Any = processor
    full = 255 * (about.rescale_factor if about.do_rescale else 1)
    mean, std = (about.image_mean, about.image_std) if about.do_normalize else (0.0, 1.0)
    channels = shape_of(processor)[0]
    means, stds = (tuple(float(v) / full for v in np.broadcast_to(values, channels)) for values in (mean, std))
    return PixelStatistics(means, stds)


def shape_of(processor: BaseImageProcessor) -> tuple[int, int, int]:
    """Channels, height and width of a processor's results."""
    shapes = {pixels_uint8(processor, picture).shape for picture in _examples()}
    if len(shapes) > 1:
        raise ValueError(
            f"{type(processor).__name__} makes pictures of different sizes ({', '.join(map(str, sorted(shapes)))}); "
            "expected one size for all: set crop_size in its preprocessor_config.json"
        )
    channels, height, width = shapes.pop()
    return channels, height, width


def check_processor(processor: BaseImageProcessor) -> None:
    """Refuse one that does more than resize, crop, rescale and normalise: data in 8 bits cannot reproduce it."""
    statistics = statistics_of(processor)
    mean, std = (np.asarray(values)[:, None, None] for values in (statistics.mean, statistics.std))
    for picture in _examples():
        pixels, values = pixels_uint8(processor, picture), pixel_values(processor, picture)[0].numpy()
        level = 1.01 / 255 / std  # a processor may round to 8 bits at another point
        if pixels.dtype != np.uint8 or (np.abs((pixels / 255 - mean) / std - values) > level).any():
            raise ValueError(
                f"{type(processor).__name__} does more to a picture than resize, crop, rescale and normalise, so that "
                "data cannot be read as it does; expected such a preprocessor_config.json, or none"
            )


def _examples() -> list[Image.Image]:
    """A wide picture and a tall one, of noise."""
    noise = np.random.default_rng(0).integers(0, 256, (47, 61, 3), dtype=np.uint8)
    return [Image.fromarray(noise), Image.fromarray(noise.transpose(1, 0, 2).copy())]


def processor_fields(processor: BaseImageProcessor) -> list[Any]:
    """All that the result of `pixels_uint8` depends on, as JSON can write it."""
    fields = {key: value for key, value in processor.to_dict().items() if key not in STATISTICS}
    return [type(processor).__name__, fields]
