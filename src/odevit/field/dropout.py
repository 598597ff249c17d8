"""Bernoulli(1 - p) / (1 - p): masks that are drawn once for a trajectory, not once for an evaluation.

A mask redrawn at every evaluation would make the field a different function at every stage of a step: there would
be no equation left to solve.
"""

from __future__ import annotations

import torch
from torch import Tensor


def draw_mask(probability: float, shape: tuple[int, ...], like: Tensor) -> Tensor | None:
    """A mask of 0 and 1/(1 - p), or None when nothing is dropped."""
    if probability == 0.0:
        return None
    keep = torch.rand(shape, device=like.device) >= probability
    return keep.to(like.dtype) / (1.0 - probability)


def draw_path_mask(probability: float, like: Tensor) -> Tensor | None:
    """One number per sample: the whole component is dropped for the whole trajectory."""
    return draw_mask(probability, (like.shape[0],) + (1,) * (like.ndim - 1), like)
