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
_GEOMETRIC = range(OPERATIONS.index("rotate"), OPERATIONS.index("shift_y") + 1)


def rand_augment(images: Tensor, u: Tensor, operations: int, magnitude: float) -> Tensor:
    """`operations` random changes of `magnitude` (0..30). `u` is [2 * operations, B] in [0, 1): which, which way."""
    level = magnitude / MAXIMUM
    chosen = [(u[2 * n] * len(OPERATIONS)).floor() for n in range(operations)]
    signs = [torch.where(u[2 * n + 1] < 0.5, -1.0, 1.0) for n in range(operations)]
    if operations == 0:
        return images
    images = _move(images, chosen, signs, level)
    for choice, sign in zip(chosen, signs, strict=True):
        images = _recolour(images, choice, sign, level)
    return images


def _move(images: Tensor, chosen: list[Tensor], signs: list[Tensor], level: float) -> Tensor:
    matrices, geometric = [], []
    for choice, sign in zip(chosen, signs, strict=True):
        # Of each operation's five parameters at most one is not zero.
        amounts = [math.radians(30), 0.3, 0.3, 0.45, 0.45]
        parameters = [
            torch.where(choice == number, sign * (level * amount), 0.0)
            for number, amount in zip(_GEOMETRIC, amounts, strict=True)
        ]
        matrices.append(affine_matrix(*parameters))
        geometric.append((choice >= _GEOMETRIC.start) & (choice < _GEOMETRIC.stop))
    moved = torch.stack(geometric).any(0)
    return torch.where(moved[:, None, None, None], warp(images, reduce(compose, matrices)), images)


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
