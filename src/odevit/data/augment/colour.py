"""x' = blend(degenerate(x), x, amount), pixel by pixel; the amount is one number per sample, [B].

Amount 1 is the identity for brightness, contrast, saturation and sharpness. Images are in 0..1 and stay there.
Histogram equalisation is missing on purpose: on a device it needs atomic counts, which are slow.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

_LUMA = (0.299, 0.587, 0.114)  # ITU-R 601, as PIL converts to grey


def grey(images: Tensor) -> Tensor:
    """Luma, [B, 1, H, W]; for images that are not RGB the mean of their channels."""
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True)
    red, green, blue = images.unbind(1)
    return (_LUMA[0] * red + _LUMA[1] * green + _LUMA[2] * blue)[:, None]


def brightness(images: Tensor, amount: Tensor) -> Tensor:
    """x amount."""
    return (images * _wide(amount)).clamp(0, 1)


def contrast(images: Tensor, amount: Tensor) -> Tensor:
    """m + (x - m) amount, m the mean luma of the image."""
    # Summed as whole levels: integers add up to the same in any order, so the batch size cannot show.
    levels = (grey(images) * 255).round().to(torch.int64)
    pixels = images.shape[-2] * images.shape[-1]
    mean = levels.sum((1, 2, 3)).to(images.dtype) / (255 * pixels)
    return _blend(_wide(mean), images, amount)


def saturation(images: Tensor, amount: Tensor) -> Tensor:
    """g + (x - g) amount, g the luma of the pixel."""
    return _blend(grey(images), images, amount)


def sharpness(images: Tensor, amount: Tensor) -> Tensor:
    """s + (x - s) amount, s the image smoothed by [1 1 1; 1 5 1; 1 1 1] / 13; the border stays."""
    smooth = images.clone()
    smooth[:, :, 1:-1, 1:-1] = (9 * F.avg_pool2d(images, 3, stride=1) + 4 * images[:, :, 1:-1, 1:-1]) / 13
    return _blend(smooth, images, amount)


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """1 - x where x >= threshold."""
    return torch.where(images >= _wide(threshold), 1 - images, images)


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Keep the highest `bits` (0..8, whole) of each 8-bit level."""
    step = torch.exp2(8 - _wide(bits).double()).to(images.dtype)
    return ((images * 255).round() / step).floor() * step / 255


def autocontrast(images: Tensor) -> Tensor:
    """(x - min) / (max - min) for each channel; a flat channel stays."""
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    flat = high <= low
    return torch.where(flat, images, (images - low) / torch.where(flat, torch.ones_like(high), high - low))


def colour_jitter(images: Tensor, u: Tensor, probability: float, strength: float = 0.4) -> Tensor:
    """Brightness, contrast and saturation by 1 - strength .. 1 + strength, in samples with u[0] < probability.

    `u` is [4, B] in [0, 1).
    """
    amounts = 1 + strength * (2 * u[1:4] - 1)
    changed = saturation(contrast(brightness(images, amounts[0]), amounts[1]), amounts[2])
    return torch.where(_wide(u[0] < probability), changed, images)


def _blend(degenerate: Tensor, images: Tensor, amount: Tensor) -> Tensor:
    return (degenerate + (images - degenerate) * _wide(amount)).clamp(0, 1)


def _wide(amount: Tensor) -> Tensor:
    return amount[:, None, None, None]
