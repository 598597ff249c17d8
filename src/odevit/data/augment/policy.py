"""images, labels -> flip, affine, RandAugment, crop, colour, erasing, mixing -> images', soft targets.

What happens to a sample is decided by (seed, epoch, its position in the epoch) and by nothing else: not by the
batch size (as long as it is even: mixing pairs neighbours), the rank, the device or where a run was resumed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from odevit.data.augment.boxes import random_erasing
from odevit.data.augment.colour import colour_jitter
from odevit.data.augment.geometry import random_affine, random_crop, random_flip
from odevit.data.augment.mix import cutmix, mixup, soft_targets, symmetric_beta
from odevit.data.augment.randaugment import MAXIMUM, NUMBERS_PER_OPERATION, rand_augment
from odevit.data.hashing import uniforms
from odevit.errors import ConfigError

# Each augmentation has its own random numbers: turning one on does not change what another does.
_FLIP = 0
_CROP = slice(1, 3)
_AFFINE = slice(3, 8)
_COLOUR = slice(8, 12)
_ERASING = slice(12, 17)
_MIX = slice(17, 22)
_RANDAUGMENT = 32  # and all after it


@dataclass
class Augmentation:
    """What is done to training images. The default, everything off, is the identity with one-hot targets."""

    crop: int = 0
    """Random crop of the image padded by this many mirrored pixels."""
    flip: bool = False
    """Mirror half of the samples left and right."""
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
    """Differently augmented copies of a sample in a batch (see `EpochPlan`)."""

    def __post_init__(self) -> None:
        checks = (_range_problem(field.name, getattr(self, field.name)) for field in fields(self))
        problems = [problem for problem in checks if problem is not None]
        if not problems:
            if self.mix_probability > 0 and self.mixup == 0 and self.cutmix == 0:
                problems.append("mix_probability > 0 but mixup and cutmix are 0; set mixup=0.8 or cutmix=1.0 too")
            if self.mix_probability == 0 and (self.mixup > 0 or self.cutmix > 0):
                problems.append("mixup or cutmix > 0 but mix_probability is 0; set mix_probability=0.5 too")
        if problems:
            raise ConfigError("Augmentation", problems)

    def __call__(
        self, images: Tensor, labels: Tensor, num_classes: int, *, seed: int, epoch: int | Tensor, index: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Augmented images and soft targets float32 [B, K].

        Args:
            images: float [B, C, H, W] in 0..1.
            labels: int64 [B].
            num_classes: K.
            seed, epoch, index: what the randomness is a function of; `index` int64 [B], one number per
                sample. In a compiled or captured call `epoch` is an int64 tensor [], so that it can change.
        """
        targets = soft_targets(labels, num_classes, self.label_smoothing)
        if not self._draws():
            return images, targets
        u = uniforms(seed, epoch, index, _RANDAUGMENT + NUMBERS_PER_OPERATION * self.randaugment_ops)
        if self.flip:
            images = random_flip(images, u[_FLIP])
        if self.affine > 0:
            images = random_affine(images, u[_AFFINE], self.affine)
        if self.randaugment_ops > 0:
            images = rand_augment(images, u[_RANDAUGMENT:], self.randaugment_ops, self.randaugment_magnitude)
        if self.crop > 0:
            images = random_crop(images, u[_CROP], self.crop)
        if self.colour > 0:
            images = colour_jitter(images, u[_COLOUR], self.colour)
        if self.erasing > 0:
            images = random_erasing(images, u[_ERASING], self.erasing)
        if self.mix_probability > 0:
            images, targets = self._mix(images, targets, u[_MIX])
        return images, targets

    def _draws(self) -> bool:
        chances = (self.crop, self.erasing, self.randaugment_ops, self.affine, self.colour, self.mix_probability)
        return self.flip or any(chance > 0 for chance in chances)

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


_WHOLE = {"crop": 0, "randaugment_ops": 0, "repeats": 1}
_HIGHEST = {
    "randaugment_magnitude": (MAXIMUM, f"0 to {MAXIMUM}"),
    "mixup": (16, "0 (off) or the alpha of a Beta distribution up to 16"),
    "cutmix": (16, "0 (off) or the alpha of a Beta distribution up to 16"),
    "label_smoothing": (math.nextafter(1, 0), "0 up to, not including, 1"),
}


def _range_problem(name: str, value: object) -> str | None:
    """What is wrong with `name=value`, as a sentence, or None."""
    if name == "flip":
        return None if isinstance(value, bool) else f"flip={value!r}; expected True or False"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"{name}={value!r}; expected a number"
    if name in _WHOLE:
        fits, expected = isinstance(value, int) and value >= _WHOLE[name], f"a whole number, {_WHOLE[name]} or more"
    else:
        highest, expected = _HIGHEST.get(name, (1, "a probability from 0 to 1"))
        fits = 0 <= value <= highest
    return None if fits else f"{name}={value!r}; expected {expected}"
