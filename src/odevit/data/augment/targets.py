"""y = (1 - s) onehot(label) + s / K (label smoothing, Szegedy et al. 2015)."""

from __future__ import annotations

import torch
from torch import Tensor


def soft_targets(labels: Tensor, num_classes: int, smoothing: float = 0.0) -> Tensor:
    """Targets float32 [B, K] that sum to 1, from labels int64 [B]."""
    # A comparison, not F.one_hot: it asks nothing of the device, so the host need not wait.
    hot = labels[:, None] == torch.arange(num_classes, device=labels.device)
    return hot.to(torch.float32) * (1 - smoothing) + smoothing / num_classes
