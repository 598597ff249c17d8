"""x'[i, j] = x_padded[i + dy, j + dx], with 0 <= dy, dx <= 2 padding: a crop of the size it came with."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Padding = Literal["reflect", "zero"]


def random_crop(images: Tensor, u: Tensor, padding: int, mode: Padding = "reflect") -> Tensor:
    """Shift each image by up to `padding` pixels; what enters at the edge is mirrored or black.

    `u` is [2, B] in [0, 1): the vertical and the horizontal place. Padding 0 is the identity.
    """
    height, width = images.shape[-2:]
    if padding >= min(height, width):
        raise ValueError(f"crop={padding} for images of {height}x{width}; expected less than their side")
    offset = (u * (2 * padding + 1)).floor().long() - padding
    rows = torch.arange(height, device=images.device) + offset[0, :, None]
    columns = torch.arange(width, device=images.device) + offset[1, :, None]
    # Two gathers with computed places: the padded image is never made.
    moved = images.gather(2, _mirror(rows, height)[:, None, :, None].expand_as(images))
    moved = moved.gather(3, _mirror(columns, width)[:, None, None, :].expand_as(images))
    if mode == "reflect":
        return moved
    inside = _inside(rows, height)[:, None, :, None] & _inside(columns, width)[:, None, None, :]
    return moved * inside


def _mirror(place: Tensor, length: int) -> Tensor:
    # -1 -> 1 and length -> length - 2: the edge itself is not repeated.
    return (length - 1) - ((length - 1) - place.abs()).abs()


def _inside(place: Tensor, length: int) -> Tensor:
    return (place >= 0) & (place < length)
