"""|x| and x / |x| of every sample of a batch [batch, ...], and related helpers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

FLOOR = 1e-12
"""Least probability in a logarithm, as in the released code; not for half precision."""


def at_least_single(x: Tensor) -> Tensor:
    """x in float32, or in its own precision if that is higher; for logarithms and squares of half precision."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def norms(x: Tensor) -> Tensor:
    """|x| over all dimensions but the batch [batch]."""
    return x.reshape(len(x), -1).norm(dim=1)


def units(x: Tensor) -> Tensor:
    """x / |x|; zero stays zero."""
    return x / wide(norms(x).clamp_min(torch.finfo(x.dtype).tiny), x)


def wide(scalars: Tensor, like: Tensor) -> Tensor:
    """[batch] -> [batch, 1, ...], to multiply the states of a batch."""
    return scalars.view(-1, *[1] * (like.ndim - 1))


def random_normal(shape: Sequence[int], seed: int) -> Tensor:
    """N(0, 1) in double precision on the CPU, the same for every device; the global generator does not change."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def spectral_norm(matrices: Tensor) -> Tensor:
    """|W|_2, the largest singular value, of matrices [..., row, column]."""
    return torch.linalg.matrix_norm(matrices, ord=2)
