"""x'[i, j] = x[i, W-1-j] for some of the samples."""

from __future__ import annotations

import torch
from torch import Tensor


def random_flip(images: Tensor, u: Tensor, probability: float = 0.5) -> Tensor:
    """Mirror left and right the samples with u < probability. `u` is [B] in [0, 1)."""
    return torch.where((u < probability)[:, None, None, None], images.flip(-1), images)
