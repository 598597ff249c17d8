"""(resize(image) / 255 - mean) / std: how a picture becomes pixel_values, and what a model says about it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import hf_hub_download, try_to_load_from_cache
from torch import nn
from transformers import ViTImageProcessorPil
from transformers.image_utils import PILImageResampling

PROCESSOR = "preprocessor_config.json"


@dataclass(frozen=True)
class PixelStatistics:
    """mean and std of each channel, as fractions of full scale."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def near(self, other: PixelStatistics, tolerance: float = 5e-3) -> bool:
        """Whether two statistics are the same up to rounding: about a grey level is not worth an error."""
        ours, theirs = (*self.mean, *self.std), (*other.mean, *other.std)
        same_channels = len(self.mean) == len(other.mean) and len(self.std) == len(other.std)
        return same_channels and all(abs(a - b) <= tolerance for a, b in zip(ours, theirs, strict=True))


def make_image_processor(config: Any) -> ViTImageProcessorPil:
    """Hugging Face's ViT processor with the size and the pixel statistics of a model. Needs no torchvision."""
    if not config.image_mean or not config.image_std:
        raise ValueError(
            "the model does not say with which pixel statistics it was trained; expected a preprocessor_config.json "
            "with image_mean and image_std beside its weights"
        )
    size = config.image_size
    height, width = (size, size) if isinstance(size, int) else size
    return ViTImageProcessorPil(
        size={"height": height, "width": width},
        resample=PILImageResampling.BICUBIC,
        image_mean=list(config.image_mean),
        image_std=list(config.image_std),
        do_convert_rgb=config.num_channels == 3,
    )


def read_processor(source: str | Path, *, download: bool = False) -> dict[str, Any] | None:
    """The configuration of the image processor that lies beside a model: in its folder, or in the hub's cache."""
    for name in (PROCESSOR, "processor_config.json"):
        path = _find(str(source), name, download)
        if path is not None:
            content = json.loads(path.read_text())
            # A processor of images and text keeps the one of images inside.
            return content.get("image_processor", content if name == PROCESSOR else None)
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


def statistics_of(processor: dict[str, Any] | None, model: nn.Module) -> PixelStatistics | None:
    """What an image processor does to pixels; without one, what the model's own configuration says."""
    about: Any = processor
    if about is None:
        config: Any = getattr(model, "config", None)
        timm: Any = getattr(model, "pretrained_cfg", None)
        if getattr(config, "image_mean", None) and getattr(config, "image_std", None):
            about = {"image_mean": config.image_mean, "image_std": config.image_std}
        elif isinstance(timm, dict) and timm.get("mean") and timm.get("std"):
            about = {"image_mean": timm["mean"], "image_std": timm["std"]}
    if not about or not about.get("image_mean") or not about.get("image_std"):
        return None
    mean, std = tuple(map(float, about["image_mean"])), tuple(map(float, about["image_std"]))
    if not about.get("do_normalize", True):
        return PixelStatistics((0.0,) * len(mean), (1.0,) * len(std))
    return PixelStatistics(mean, std)
