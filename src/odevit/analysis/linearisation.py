"""v -> J v and u -> J^T u, J = df/dx: products with a Jacobian that nobody writes out."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def jacobian(velocity: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Callable[[Tensor], Tensor], ...]:
    """Both products at x, recorded once for many of them.

    u -> J^T u is linear, so what its own derivative pulls back is J v: several times faster than a forward derivative,
    which evaluates f anew for every v.
    """
    pull = torch.func.vjp(velocity, x)[1]
    push = torch.func.vjp(lambda u: pull(u)[0], torch.zeros_like(x))[1]
    return lambda v: push(v)[0], lambda u: pull(u)[0]
