"""(resize(image) / 255 - mean) / std: how a file becomes pixel_values."""

from __future__ import annotations

from transformers import ViTImageProcessorPil
from transformers.image_utils import PILImageResampling

from odevit.model.configuration_odevit import OdeViTConfig


def make_image_processor(config: OdeViTConfig) -> ViTImageProcessorPil:
    """Hugging Face's ViT processor with the size and the pixel statistics of the model. Needs no torchvision."""
    return ViTImageProcessorPil(
        size={"height": config.image_size, "width": config.image_size},
        resample=PILImageResampling.BICUBIC,
        image_mean=list(config.image_mean),
        image_std=list(config.image_std),
        do_convert_rgb=config.num_channels == 3,
    )
