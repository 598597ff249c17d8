"""x' = c_n( .. c_1( x(A p) ) ): n operations drawn at random per sample, all of one magnitude.

RandAugment (Cubuk et al. 2019). The geometric ones among the n are composed into a single map A and sampled
once; the colour ones follow in the order drawn. The magnitude counts 0..30, as in the paper.
"""

from __future__ import annotations

import math
from functools import reduce

import torch
from torch import Tensor

from odevit.data.augment import colour
from odevit.data.augment.geometry import affine_matrix, compose, warp

OPERATIONS = (
    "identity", "rotate", "shear_x", "shear_y", "shift_x", "shift_y", "brightness", "contrast", "saturation",
    "sharpness", "solarize", "posterize", "autocontrast",
)  # fmt: skip
"""What is drawn from, with equal chances."""

MAXIMUM = 30
NUMBERS_PER_OPERATION = 2
_GEOMETRIC = dict(zip(range(1, 6), (math.radians(30), 0.3, 0.3, 0.45, 0.45), strict=True))
"""The operations that move pixels, "rotate" to "shift_y", and the most each does."""


def rand_augment(images: Tensor, u: Tensor, operations: int, magnitude: float) -> Tensor:
    """`operations` random changes of `magnitude` (0..30). `u` is [2 * operations, B] in [0, 1): which, which way."""
    if operations == 0:
        return images
    level = magnitude / MAXIMUM
    chosen = (u[0 : 2 * operations : 2] * len(OPERATIONS)).floor()
    signs = torch.where(u[1 : 2 * operations : 2] < 0.5, -1.0, 1.0)
    matrices = [
        # Of each operation's five parameters at most one is not zero.
        affine_matrix(*(torch.where(choice == n, sign * (level * most), 0.0) for n, most in _GEOMETRIC.items()))
        for choice, sign in zip(chosen, signs, strict=True)
    ]
    moved = ((chosen >= min(_GEOMETRIC)) & (chosen <= max(_GEOMETRIC))).any(0)
    images = torch.where(moved[:, None, None, None], warp(images, reduce(compose, matrices)), images)
    for choice, sign in zip(chosen, signs, strict=True):
        images = _recolour(images, choice, sign, level)
    return images


def _recolour(images: Tensor, choice: Tensor, sign: Tensor, level: float) -> Tensor:
    factor = 1 + sign * (0.9 * level)
    threshold = torch.full_like(sign, 1 - level)
    bits = torch.full_like(sign, 8 - round(4 * level))
    changed = {
        "brightness": colour.brightness(images, factor),
        "contrast": colour.contrast(images, factor),
        "saturation": colour.saturation(images, factor),
        "sharpness": colour.sharpness(images, factor),
        "solarize": colour.solarize(images, threshold),
        "posterize": colour.posterize(images, bits),
        "autocontrast": colour.autocontrast(images),
    }
    result = images
    for name, candidate in changed.items():
        result = torch.where((choice == OPERATIONS.index(name))[:, None, None, None], candidate, result)
    return result
