"""mask[i, j] = (top <= i < top + h) and (left <= j < left + w): one box per sample, all of it inside the image."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def random_box(u: Tensor, height: Tensor, width: Tensor, size: tuple[int, int]) -> Tensor:
    """A mask, bool [B, 1, H, W], of boxes of whole `height` and `width` ([B]) placed by u ([2, B] in [0, 1)).

    A box of height or width 0 covers nothing.
    """
    rows = _interval(u[0], height, size[0])
    columns = _interval(u[1], width, size[1])
    return rows[:, None, :, None] & columns[:, None, None, :]


def _interval(u: Tensor, extent: Tensor, length: int) -> Tensor:
    start = (u * (length - extent + 1)).floor()[:, None]
    position = torch.arange(length, device=u.device)
    return (position >= start) & (position < start + extent[:, None])


def random_erasing(
    images: Tensor,
    u: Tensor,
    probability: float,
    *,
    area: tuple[float, float] = (0.02, 0.33),
    aspect: float = 3.3,
    fill: float = 0.5,
) -> Tensor:
    """x' = fill inside a random box, x outside, where u[0] < probability (random erasing, Zhong et al. 2017).

    `u` is [5, B] in [0, 1): whether, how large, which shape, where (two). The box covers a fraction of the
    image uniform in `area`, with height / width log-uniform in [1 / aspect, aspect], cut to the image.
    """
    height, width = images.shape[-2], images.shape[-1]
    pixels = (area[0] + (area[1] - area[0]) * u[1]) * (height * width)
    # float64: a float32 exponential rounds by the place in a vector register, hence by the batch.
    ratio = torch.exp((2 * u[2].double() - 1) * math.log(aspect)).to(u.dtype)
    box_height = (pixels * ratio).sqrt().round().clamp(1, height)
    box_width = (pixels / ratio).sqrt().round().clamp(1, width)
    box = random_box(u[3:5], box_height, box_width, (height, width))
    return images.masked_fill(box & (u[0] < probability)[:, None, None, None], fill)
