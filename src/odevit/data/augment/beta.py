"""lambda = F^-1(u), F the distribution function of Beta(alpha, alpha): a mixing weight from one number.

Libraries draw Beta by rejection, which needs a generator. Here the inverse is tabulated once. With s = x^alpha
the density is ds (1 - s^(1/alpha))^(alpha-1) / alpha: no singularity at 0, so s as a function of u is nearly
straight there and a table of it is accurate in the tails too.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

_CELLS = 2048
_FINE = 1 << 16


def symmetric_beta(u: Tensor, alpha: float) -> Tensor:
    """Numbers distributed as Beta(alpha, alpha), from `u` uniform in [0, 1); rising with u."""
    if alpha == 1:
        return u
    table = _table_on(alpha, u.device)
    wide = u.double()  # powers in float32 round by the place in a vector register, so by the batch
    lower = torch.minimum(wide, 1 - wide)  # the distribution is symmetric: tabulate the lower half
    place = lower * (2 * _CELLS)
    left = place.long().clamp(max=_CELLS - 1)
    s = torch.lerp(table[left], table[left + 1], place - left)
    x = s ** (1 / alpha)
    return torch.where(u <= 0.5, x, 1 - x).to(u.dtype)


@torch.compiler.assume_constant_result  # a compiled graph holds the table, not the making of it
def _table_on(alpha: float, device: torch.device) -> Tensor:
    return _table(alpha, device)


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
