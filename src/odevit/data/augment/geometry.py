"""x'(p) = x(A p + b): flips, crops and affine maps, one per sample.

Affine maps are composed first and sampled once. p are pixel positions from the centre of the image, in units of
its longer side, so a shift of 0.1 is a tenth of the image and a rotation does not shear. A map is [B, 2, 3].
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def random_flip(images: Tensor, u: Tensor, probability: float = 0.5) -> Tensor:
    """x'[i, j] = x[i, W-1-j] in the samples with u < probability. `u` is [B] in [0, 1)."""
    return torch.where((u < probability)[:, None, None, None], images.flip(-1), images)


def random_crop(images: Tensor, u: Tensor, padding: int) -> Tensor:
    """x'[i, j] = x_padded[i + dy, j + dx], 0 <= dy, dx <= 2 padding: a crop of the size the image had.

    `u` is [2, B] in [0, 1): the vertical and the horizontal place. What enters at the edge is mirrored.
    """
    height, width = images.shape[-2:]
    if padding >= min(height, width):
        raise ValueError(f"crop={padding} for images of {height}x{width}; expected less than their side")
    offset = (u * (2 * padding + 1)).floor().long() - padding
    rows = torch.arange(height, device=images.device) + offset[0, :, None]
    columns = torch.arange(width, device=images.device) + offset[1, :, None]
    # Two gathers at computed positions: the padded image is never built.
    moved = images.gather(2, _mirror(rows, height)[:, None, :, None].expand_as(images))
    return moved.gather(3, _mirror(columns, width)[:, None, None, :].expand_as(images))


def _mirror(position: Tensor, length: int) -> Tensor:
    # -1 -> 1 and length -> length - 2: the edge itself is not repeated.
    return (length - 1) - ((length - 1) - position.abs()).abs()


def affine_matrix(angle: Tensor, shear_x: Tensor, shear_y: Tensor, shift_x: Tensor, shift_y: Tensor) -> Tensor:
    """p -> R S p + shift: shear, rotate, shift; [B, 2, 3], the identity for zeros. All [B], angle in radians."""
    # In float32 these round by the place in a vector register, hence by the batch; in float64 it does not show.
    cos, sin = torch.cos(angle.double()).to(angle.dtype), torch.sin(angle.double()).to(angle.dtype)
    # Shear by S = [[1, shear_x], [shear_y, 1]]; the product R S is written out: three numbers, no bmm.
    first = torch.stack([cos - sin * shear_y, cos * shear_x - sin, shift_x], -1)
    second = torch.stack([sin + cos * shear_y, sin * shear_x + cos, shift_y], -1)
    return torch.stack([first, second], 1)


def warp(images: Tensor, matrix: Tensor) -> Tensor:
    """Sample `images`, mirrored at the edges, at the positions `matrix` ([B, 2, 3]) sends the pixels to: bilinear."""
    height, width = images.shape[-2:]
    unit = max(height, width)
    y = ((torch.arange(height, device=images.device) - (height - 1) / 2) / unit)[:, None]
    x = ((torch.arange(width, device=images.device) - (width - 1) / 2) / unit)[None, :]
    m = matrix[..., None, None]
    source_x = m[:, 0, 0] * x + m[:, 0, 1] * y + m[:, 0, 2]
    source_y = m[:, 1, 0] * x + m[:, 1, 1] * y + m[:, 1, 2]
    # grid_sample counts -1..1 from edge to edge of the image (align_corners=False).
    grid = torch.stack([source_x * (2 * unit / width), source_y * (2 * unit / height)], -1)
    return F.grid_sample(images, grid.to(images.dtype), "bilinear", "reflection", align_corners=False)


def random_zoom(images: Tensor, u: Tensor, smallest: float, *, aspect: float = 4 / 3) -> Tensor:
    """x'(p) = x(diag(w, h) p + b): a window of the image, stretched to its size (Szegedy et al. 2014).

    It covers a share of the area uniform in [smallest, 1], its height over its width is log-uniform in
    [1 / aspect, aspect], and it lies within the image. `u` is [4, B] in [0, 1): how large, which shape, where (two).
    """
    height, width = images.shape[-2:]
    area = smallest + (1 - smallest) * u[0]
    # float64: a float32 exponential rounds by the place in a vector register, hence by the batch.
    ratio = torch.exp((2 * u[1].double() - 1) * math.log(aspect)).to(u.dtype)
    tall, wide = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
    room = max(height, width)
    down, right = (2 * u[2] - 1) * (1 - tall) * (height / room / 2), (2 * u[3] - 1) * (1 - wide) * (width / room / 2)
    zero = torch.zeros_like(area)
    return warp(images, torch.stack([torch.stack([wide, zero, right], -1), torch.stack([zero, tall, down], -1)], 1))


def random_affine(
    images: Tensor, u: Tensor, probability: float, *, degrees: float = 15.0, shear: float = 0.1, shift: float = 0.1
) -> Tensor:
    """A small rotation, shear and shift in the samples with u[0] < probability. `u` is [5, B] in [0, 1)."""
    turn, shear_x, shift_x, shift_y = 2 * u[1:5] - 1
    matrix = affine_matrix(
        turn * math.radians(degrees), shear_x * shear, torch.zeros_like(turn), shift_x * shift, shift_y * shift
    )
    # The others pass through untouched: resampling at the very same pixels still rounds.
    return torch.where((u[0] < probability)[:, None, None, None], warp(images, matrix), images)


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
