"""images, labels -> flip, zoom, affine, crop, erasing, mixing -> images', soft targets.

What happens to a sample is decided by (seed, epoch, its position in the epoch) only: not by the
batch size (as long as it is even: mixing pairs neighbours), the rank, the device or where a run was resumed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from odevit.data.augment.geometry import random_affine, random_crop, random_erasing, random_flip, random_zoom
from odevit.data.augment.mix import cutmix, mixup, soft_targets, symmetric_beta
from odevit.data.counter_rng import uniforms
from odevit.errors import BOOLEAN, ConfigError, Expected, integer, real, validate

# Each augmentation has its own random numbers: turning one on does not change another. 8 to 11 are not used any more.
_FLIP = 0
_CROP = slice(1, 3)
_AFFINE = slice(3, 8)
_ERASING = slice(12, 17)
_MIX = slice(17, 22)
_ZOOM = slice(22, 26)
_COUNT = 26


_CHANCE = Expected("a probability from 0 to 1", real(minimum=0, maximum=1).accepts)
_ALPHA = Expected("0 (off) or the alpha of a Beta distribution up to 16", real(minimum=0, maximum=16).accepts)
_RULES = {
    "crop": Expected(
        "a whole number of pixels up to 1024, or a share of the side below 1",
        lambda v: integer(0, 1024).accepts(v) or real(above=0, below=1).accepts(v),
    ),
    "flip": BOOLEAN,
    "zoom": Expected("0 (off) or the smallest share of the area, below 1", real(minimum=0, below=1).accepts),
    "erasing": _CHANCE,
    "affine": _CHANCE,
    "mixup": _ALPHA,
    "cutmix": _ALPHA,
    "mix_probability": _CHANCE,
    "label_smoothing": real(minimum=0, below=1),
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
    affine: float = 0.0
    """Probability of a small rotation, shear and shift."""
    mixup: float = 0.0
    """alpha of the Beta(alpha, alpha) from which mixup weights are drawn; 0 turns mixup off."""
    cutmix: float = 0.0
    """alpha of the Beta(alpha, alpha) from which cutmix areas are drawn; 0 turns cutmix off."""
    mix_probability: float = 0.0
    """Probability that a sample is mixed, shared equally by mixup and cutmix when both are on."""
    label_smoothing: float = 0.0
    """Share of a target spread over all classes."""

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
        u = uniforms(seed, epoch, index, _COUNT)
        if self.flip:
            images = random_flip(images, u[_FLIP])
        if self.zoom > 0:
            images = random_zoom(images, u[_ZOOM], self.zoom)
        if self.affine > 0:
            images = random_affine(images, u[_AFFINE], self.affine)
        if self.crop > 0:
            images = random_crop(images, u[_CROP], self.padding(images.shape[-1]))
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
