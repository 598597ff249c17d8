"""x' = M x + (1 - M) x_partner and y' = mean(M) y + (1 - mean(M)) y_partner.

M is one number in mixup (Zhang et al. 2017), a box of zeros in cutmix (Yun et al. 2019). The partner of
position 2i is 2i + 1 and the other way round: the order of an epoch is random, so neighbours are random pairs,
and a pair stays together in any batch of even size and on any rank. Which images meet then does not depend on
how the epoch is cut. The last of an odd batch has no partner and stays as it is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from odevit.data.augment.box import random_box


def partner_of(batch: Tensor) -> Tensor:
    """The batch with neighbours exchanged: 1, 0, 3, 2, ..."""
    place = torch.arange(batch.shape[0], device=batch.device)
    return batch[(place ^ 1).clamp(max=max(batch.shape[0] - 1, 0))]


def mixup(images: Tensor, targets: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """keep x + (1 - keep) x_partner, the targets alike. `keep` is [B] in 0..1."""
    weight = keep[:, None, None, None].to(images.dtype)
    return _blend(images, weight), _blend(targets, keep[:, None])


def cutmix(images: Tensor, targets: Tensor, keep: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """A box of about (1 - keep) of the area comes from the partner; targets follow the area it really has.

    `keep` is [B] in 0..1, `u` [2, B] in [0, 1) the place of the box.
    """
    height, width = images.shape[-2:]
    side = (1 - keep).clamp(min=0).sqrt()
    box_height, box_width = (height * side).round(), (width * side).round()
    box = random_box(u, box_height, box_width, (height, width))
    kept = 1 - box_height * box_width / (height * width)
    return torch.where(box, partner_of(images), images), _blend(targets, kept[:, None])


def _blend(batch: Tensor, weight: Tensor) -> Tensor:
    return weight * batch + (1 - weight) * partner_of(batch)
