"""x' = M x + (1 - M) x_partner and y' = mean(M) y + (1 - mean(M)) y_partner.

M is one number in mixup (Zhang et al. 2017), a box of zeros in cutmix (Yun et al. 2019). The partner of
position 2i is 2i + 1 and vice versa: the order of an epoch is random, so neighbours are random pairs, and a
pair stays together in any batch of even size and on any rank. Which images meet therefore does not depend on
how the epoch is cut. The last sample of an odd batch has no partner and stays as it is.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from odevit.data.augment.geometry import random_box

_CELLS = 2048
_FINE = 1 << 16


def soft_targets(labels: Tensor, num_classes: int, smoothing: float = 0.0) -> Tensor:
    """y = (1 - s) onehot(label) + s / K, float32 [B, K], from labels int64 [B] (Szegedy et al. 2015)."""
    # A comparison, not F.one_hot: it asks nothing of the device, so the host need not wait.
    hot = labels[:, None] == torch.arange(num_classes, device=labels.device)
    return hot.to(torch.float32) * (1 - smoothing) + smoothing / num_classes


def partner_of(batch: Tensor) -> Tensor:
    """The batch with neighbours exchanged: 1, 0, 3, 2, ..."""
    position = torch.arange(batch.shape[0], device=batch.device)
    return batch[(position ^ 1).clamp(max=max(batch.shape[0] - 1, 0))]


def mixup(images: Tensor, targets: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """keep x + (1 - keep) x_partner, and the same for the targets. `keep` is [B] in 0..1."""
    weight = keep[:, None, None, None].to(images.dtype)
    return _blend(images, weight), _blend(targets, keep[:, None])


def cutmix(images: Tensor, targets: Tensor, keep: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """A box of about (1 - keep) of the area comes from the partner; targets follow its area in whole pixels.

    `keep` is [B] in 0..1; `u`, [2, B] in [0, 1), places the box.
    """
    height, width = images.shape[-2:]
    side = (1 - keep).clamp(min=0).sqrt()
    box_height, box_width = (height * side).round(), (width * side).round()
    box = random_box(u, box_height, box_width, (height, width))
    own_area = 1 - box_height * box_width / (height * width)
    return torch.where(box, partner_of(images), images), _blend(targets, own_area[:, None])


def _blend(batch: Tensor, weight: Tensor) -> Tensor:
    return weight * batch + (1 - weight) * partner_of(batch)


def symmetric_beta(u: Tensor, alpha: float) -> Tensor:
    """F^-1(u), F the distribution function of Beta(alpha, alpha): a mixing weight from `u` in [0, 1).

    Libraries draw Beta by rejection, which needs a generator. Here the inverse is tabulated once. With s = x^alpha
    the density is ds (1 - s^(1/alpha))^(alpha-1) / alpha: no singularity at 0, so s as a function of u is nearly
    straight there and a table of it is accurate in the tails too.
    """
    if alpha == 1:
        return u
    table = _constant_table(alpha, u.device)
    wide = u.double()  # powers in float32 round by the place in a vector register, hence by the batch
    lower = torch.minimum(wide, 1 - wide)  # the distribution is symmetric: tabulate the lower half
    place = lower * (2 * _CELLS)
    left = place.long().clamp(max=_CELLS - 1)
    s = torch.lerp(table[left], table[left + 1], place - left)
    x = s ** (1 / alpha)
    return torch.where(u <= 0.5, x, 1 - x).to(u.dtype)


@torch.compiler.assume_constant_result  # a compiled graph holds the table, not the making of it
def _constant_table(alpha: float, device: torch.device) -> Tensor:
    return _table(alpha, device)  # the compiler warns of a cache that it meets itself


@lru_cache(maxsize=64)
def _table(alpha: float, device: torch.device) -> Tensor:
    """s at u = 0, 1/(2 cells), .., 1/2, float64."""
    x = np.linspace(0, 0.5, _FINE + 1)
    s = x**alpha
    density = (1 - x) ** (alpha - 1)
    u = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2 * np.diff(s))])
    u *= 0.5 / u[-1]
    table = np.interp(np.linspace(0, 0.5, _CELLS + 1), u, s)
    return torch.from_numpy(table).to(device)
