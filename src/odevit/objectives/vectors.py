"""|x| and x / |x| of every sample of a batch [batch, ...], in single precision or better where it matters."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

FLOOR = 1e-12
"""Probabilities are raised to this before a logarithm, as in the released code; it is too small for half precision."""


def at_least_single(x: Tensor) -> Tensor:
    """x in float32, or in its own precision where that is higher: no logarithms or squares in half precision."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def norms(x: Tensor) -> Tensor:
    """|x| over everything but the batch [batch]: a state is one vector, whatever its shape."""
    return x.reshape(len(x), -1).norm(dim=1)


def units(x: Tensor) -> Tensor:
    """x / |x|; zero stays zero."""
    return x / wide(norms(x).clamp_min(torch.finfo(x.dtype).tiny), x)


def wide(scalars: Tensor, like: Tensor) -> Tensor:
    """[batch] -> [batch, 1, ...], to multiply the states of a batch."""
    return scalars.view(-1, *[1] * (like.ndim - 1))


def random_normal(shape: Sequence[int], seed: int) -> Tensor:
    """N(0, 1) in double precision on the CPU: the same on every device, and the global generator is left alone."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def spectral_norm(matrices: Tensor) -> Tensor:
    """|W|_2, the largest singular value, of matrices [..., row, column]."""
    return torch.linalg.matrix_norm(matrices, ord=2)
