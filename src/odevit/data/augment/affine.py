"""x'(p) = x(A p + b): one affine map a sample, composed first and sampled once.

p are pixel places from the centre of the image, in units of its longer side, so a shift of 0.1 is a tenth of
the image and a rotation does not shear. A map is a tensor [B, 2, 3].
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Edge = Literal["zeros", "border", "reflection"]


def affine_matrix(angle: Tensor, shear_x: Tensor, shear_y: Tensor, shift_x: Tensor, shift_y: Tensor) -> Tensor:
    """p -> R S p + shift: shear, rotate, shift; [B, 2, 3], the identity for zeros. All [B], angle in radians."""
    # In float32 these round by the place in a vector register, so by the batch; in float64 it does not show.
    cos, sin = torch.cos(angle.double()).to(angle.dtype), torch.sin(angle.double()).to(angle.dtype)
    # Shear by S = [[1, shear_x], [shear_y, 1]]; the product R S is written out: three numbers, no bmm.
    first = torch.stack([cos - sin * shear_y, cos * shear_x - sin, shift_x], -1)
    second = torch.stack([sin + cos * shear_y, sin * shear_x + cos, shift_y], -1)
    return torch.stack([first, second], 1)


def compose(outer: Tensor, inner: Tensor) -> Tensor:
    """p -> outer(inner(p)), [B, 2, 3].

    Written out as sums of products, since a batched matrix product may round by the size of the batch.
    """
    linear = outer[:, :, :1] * inner[:, :1] + outer[:, :, 1:2] * inner[:, 1:2]
    shift = torch.cat([torch.zeros_like(outer[:, :, :2]), outer[:, :, 2:]], -1)
    return linear + shift


def warp(images: Tensor, matrix: Tensor, edge: Edge = "reflection") -> Tensor:
    """Sample `images` bilinearly at the places `matrix` ([B, 2, 3]) sends the pixels of the result to."""
    height, width = images.shape[-2:]
    unit = max(height, width)
    y = ((torch.arange(height, device=images.device) - (height - 1) / 2) / unit)[:, None]
    x = ((torch.arange(width, device=images.device) - (width - 1) / 2) / unit)[None, :]
    m = matrix[..., None, None]
    source_x = m[:, 0, 0] * x + m[:, 0, 1] * y + m[:, 0, 2]
    source_y = m[:, 1, 0] * x + m[:, 1, 1] * y + m[:, 1, 2]
    # grid_sample counts -1..1 from edge to edge of the image (align_corners=False).
    grid = torch.stack([source_x * (2 * unit / width), source_y * (2 * unit / height)], -1)
    return F.grid_sample(images, grid.to(images.dtype), "bilinear", edge, align_corners=False)


def random_affine(
    images: Tensor,
    u: Tensor,
    probability: float,
    *,
    degrees: float = 15.0,
    shear: float = 0.1,
    shift: float = 0.1,
) -> Tensor:
    """A small rotation, shear and shift, in the samples with u[0] < probability. `u` is [5, B] in [0, 1)."""
    signed = 2 * u[1:5] - 1
    matrix = affine_matrix(
        signed[0] * math.radians(degrees),
        signed[1] * shear,
        torch.zeros_like(signed[1]),
        signed[2] * shift,
        signed[3] * shift,
    )
    # The others are passed on as they are: resampling at the very pixels still rounds.
    return torch.where((u[0] < probability)[:, None, None, None], warp(images, matrix), images)
