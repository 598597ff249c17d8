"""autocast, kept: what is computed when gradients arrive has the precision of what was computed before."""

from __future__ import annotations

import torch
from torch import Tensor


def precision_now(x: Tensor) -> torch.autocast:
    """The mixed precision that holds at this place for tensors like x, or none: to be entered where it is over."""
    kind = x.device.type
    return torch.autocast(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
