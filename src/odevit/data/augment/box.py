"""mask[i, j] = (top <= i < top + h) and (left <= j < left + w): one box a sample, all of it inside the image."""

from __future__ import annotations

import torch
from torch import Tensor


def random_box(u: Tensor, height: Tensor, width: Tensor, size: tuple[int, int]) -> Tensor:
    """A mask, bool [B, 1, H, W], of boxes of whole `height` and `width` ([B]) at places u ([2, B] in [0, 1)).

    A box of height or width 0 covers nothing.
    """
    rows = _interval(u[0], height, size[0])
    columns = _interval(u[1], width, size[1])
    return rows[:, None, :, None] & columns[:, None, None, :]


def _interval(u: Tensor, extent: Tensor, length: int) -> Tensor:
    start = (u * (length - extent + 1)).floor()[:, None]
    place = torch.arange(length, device=u.device)
    return (place >= start) & (place < start + extent[:, None])
