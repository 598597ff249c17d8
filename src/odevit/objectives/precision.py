"""x -> x in single precision or better: logarithms and sums of squares are not taken in half precision."""

from __future__ import annotations

import torch
from torch import Tensor

FLOOR = 1e-12
"""Probabilities are raised to this before a logarithm, as in the released code; it is too small for half precision."""


def at_least_single(x: Tensor) -> Tensor:
    """x in float32, or in its own precision where that is higher."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
