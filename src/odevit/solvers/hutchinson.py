"""E_v |J v|^2 / numel = |J|_F^2 / numel: the Frobenius norm of a Jacobian that is not computed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def jacobian_size(f: Callable[[Tensor], Tensor], x: Tensor, distance: float = 0.03) -> Tensor:
    """|f(x + d v) - f(x)|^2 / (d^2 numel), v ~ N(0, 1): an estimate of |J|_F^2 / numel, J = f'(x), with gradient.

    Hutchinson's estimator with a finite difference instead of a derivative: fused attention and compiled fields have
    no second derivative.

    Args:
        f: maps each sample of a batch independently of the others.
        x: where J is estimated [batch, ...].
        distance: d relative to the root mean square of x; half precision rounds a much smaller one away.
    """
    precise = torch.promote_types(x.dtype, torch.float32)
    length = distance * x.detach().to(precise).square().mean().sqrt()
    moved = x + (length * torch.randn_like(x)).to(x.dtype)
    change = (f(moved) - f(x)).to(precise)
    return (change / length).square().mean()
