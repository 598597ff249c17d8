"""images, labels -> flip, zoom, affine, RandAugment, crop, colour, erasing, mixing -> images', soft targets.

What happens to a sample is decided by (seed, epoch, its position in the epoch) and by nothing else: not by the
batch size (as long as it is even: mixing pairs neighbours), the rank, the device or where a run was resumed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from odevit.data.augment import colour
from odevit.data.augment.colour import colour_jitter
from odevit.data.augment.geometry import (
    affine_matrix,
    compose,
    random_affine,
    random_crop,
    random_erasing,
    random_flip,
    random_zoom,
    warp,
)
from odevit.data.augment.mix import cutmix, mixup, soft_targets, symmetric_beta
from odevit.data.counter_rng import uniforms
from odevit.errors import BOOLEAN, ConfigError, Expected, integer, real, validate

# Each augmentation has its own random numbers: turning one on does not change what another does.
_FLIP = 0
_CROP = slice(1, 3)
_AFFINE = slice(3, 8)
_COLOUR = slice(8, 12)
_ERASING = slice(12, 17)
_MIX = slice(17, 22)
_ZOOM = slice(22, 26)
_RANDAUGMENT = 32  # and all after it


OPERATIONS = (
    "identity", "rotate", "shear_x", "shear_y", "shift_x", "shift_y", "brightness", "contrast", "saturation",
    "sharpness", "solarize", "posterize", "autocontrast",
)  # fmt: skip
"""What is drawn from, with equal chances."""

MAXIMUM = 30
NUMBERS_PER_OPERATION = 2
_GEOMETRIC = dict(zip(range(1, 6), (math.radians(30), 0.3, 0.3, 0.45, 0.45), strict=True))
"""The operations that move pixels, "rotate" to "shift_y", and the most each does."""


def _at_most(most: float, wanted: str) -> Expected:
    return Expected(wanted, lambda value: real(minimum=0).accepts(value) and value <= most)


_CHANCE = _at_most(1, "a probability from 0 to 1")
_ALPHA = _at_most(16, "0 (off) or the alpha of a Beta distribution up to 16")
_RULES = {
    "crop": Expected(
        "a whole number of pixels up to 1024, or a share of the side below 1",
        lambda v: integer(0, 1024).accepts(v) or real(above=0, below=1).accepts(v),
    ),
    "flip": BOOLEAN,
    "zoom": Expected("0 (off) or the smallest share of the area, below 1", real(minimum=0, below=1).accepts),
    "erasing": _CHANCE,
    "randaugment_ops": integer(0, 100),
    "randaugment_magnitude": _at_most(MAXIMUM, f"a number from 0 to {MAXIMUM}"),
    "affine": _CHANCE,
    "colour": _CHANCE,
    "mixup": _ALPHA,
    "cutmix": _ALPHA,
    "mix_probability": _CHANCE,
    "label_smoothing": real(minimum=0, below=1),
    "repeats": integer(1, 1024),
}


@dataclass
class Augmentation:
    """What is done to training images. The default, everything off, is the identity with one-hot targets."""

    crop: int | float = 0
    """Random crop of the image padded by this many mirrored pixels; below 1, by this share of its side."""
    flip: bool = False
    """Mirror half of the samples left and right."""
    zoom: float = 0.0
    """Show a window of at least this share of the image's area, stretched to its size; 0 turns it off."""
    erasing: float = 0.0
    """Probability of greying out a box."""
    randaugment_ops: int = 0
    """Operations RandAugment applies to a sample."""
    randaugment_magnitude: float = 9
    """How strong they are, 0..30."""
    affine: float = 0.0
    """Probability of a small rotation, shear and shift."""
    colour: float = 0.0
    """Probability of a change of brightness, contrast and saturation."""
    mixup: float = 0.0
    """alpha of the Beta(alpha, alpha) from which mixup weights are drawn; 0 turns mixup off."""
    cutmix: float = 0.0
    """alpha of the Beta(alpha, alpha) from which cutmix areas are drawn; 0 turns cutmix off."""
    mix_probability: float = 0.0
    """Probability that a sample is mixed, shared equally by mixup and cutmix when both are on."""
    label_smoothing: float = 0.0
    """Share of a target spread over all classes."""
    repeats: int = 1
    """Differently augmented copies of a sample in a batch (see `EpochSampler`)."""

    def __post_init__(self) -> None:
        problems = validate(self, _RULES)
        if not problems:
            if self.mix_probability > 0 and self.mixup == 0 and self.cutmix == 0:
                problems.append(
                    f"mix_probability={self.mix_probability}, but nothing to mix; set mixup=0.8 or cutmix=1.0 too"
                )
            if self.mix_probability == 0 and (self.mixup > 0 or self.cutmix > 0):
                problems.append(f"mixup={self.mixup}, cutmix={self.cutmix}, but never; set mix_probability=0.5 too")
        if problems:
            raise ConfigError("Augmentation", problems)

    def __call__(
        self, images: Tensor, labels: Tensor, num_classes: int, *, seed: int, epoch: int | Tensor, index: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Augmented images (float [B, C, H, W] in 0..1) and, of labels int64 [B], soft targets float32 [B, K].

        The randomness is a function of `seed`, `epoch` and `index` (int64 [B], one number per sample). In a
        compiled or captured call `epoch` is an int64 tensor [], so that it can change.
        """
        targets = soft_targets(labels, num_classes, self.label_smoothing)
        u = uniforms(seed, epoch, index, _RANDAUGMENT + NUMBERS_PER_OPERATION * self.randaugment_ops)
        if self.flip:
            images = random_flip(images, u[_FLIP])
        if self.zoom > 0:
            images = random_zoom(images, u[_ZOOM], self.zoom)
        if self.affine > 0:
            images = random_affine(images, u[_AFFINE], self.affine)
        if self.randaugment_ops > 0:
            images = rand_augment(images, u[_RANDAUGMENT:], self.randaugment_ops, self.randaugment_magnitude)
        if self.crop > 0:
            images = random_crop(images, u[_CROP], self.padding(images.shape[-1]))
        if self.colour > 0:
            images = colour_jitter(images, u[_COLOUR], self.colour)
        if self.erasing > 0:
            images = random_erasing(images, u[_ERASING], self.erasing)
        if self.mix_probability > 0:
            images, targets = self._mix(images, targets, u[_MIX])
        return images, targets

    def padding(self, side: int) -> int:
        """The padding of `crop` in pixels, for images of this side."""
        return round(self.crop * side) if 0 < self.crop < 1 else int(self.crop)

    def _mix(self, images: Tensor, targets: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """`u` is [5, B]: whether, which, how much, where (two)."""
        mixed, blended = images, targets
        if self.mixup > 0:
            mixed, blended = mixup(images, targets, symmetric_beta(u[2], self.mixup))
        if self.cutmix > 0:
            cut, cut_targets = cutmix(images, targets, symmetric_beta(u[2], self.cutmix), u[3:5])
            is_cut = u[1] < (0.5 if self.mixup > 0 else 1.0)
            mixed = torch.where(is_cut[:, None, None, None], cut, mixed)
            blended = torch.where(is_cut[:, None], cut_targets, blended)
        is_mixed = u[0] < self.mix_probability
        return (
            torch.where(is_mixed[:, None, None, None], mixed, images),
            torch.where(is_mixed[:, None], blended, targets),
        )


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
