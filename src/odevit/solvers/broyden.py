"""x = g(x): Broyden's method, a Jacobian learned from the steps themselves, every sample for itself."""

from __future__ import annotations

import torch
from torch import Tensor

from odevit.solvers.fixed_point import SEARCHES, FixedPoint, FixedPointState, Map
from odevit.solvers.precision import only_inside

DIVERGENCE_LIMIT = 3.0
"""How many times its size a residual may come to in one step: learning makes it grow now and then."""


@SEARCHES.register("broyden")
@torch.no_grad()
@only_inside
def broyden(g: Map, x0: Tensor, *, memory: int = 12, tolerance: float = 1e-4, iterations: int = 50) -> FixedPoint:
    """x_{n+1} = x_n - H_n r_n, r = g(x) - x; H_0 = -1, and H_{n+1} = H_n + (d - H_n y) (d^T H_n) / (d^T H_n y).

    d is the last step and y what it changed r by (Broyden 1965, the "good" update; Bai et al. 2019). H is -1 plus
    `memory` products u v^T, of which the oldest is dropped: what is kept does not grow with the iterations. As in
    `anderson`, a sample whose residual grows, here by more than `ASTRAY`, forgets its history and takes a plain step,
    x_{n+1} = g(x_n).

    Args:
        g, x0, tolerance, iterations: as for `anderson`.
        memory: how many steps are remembered.
    """
    search_state, x = FixedPointState(g, x0), x0.flatten(1)
    left = x.new_zeros(len(x), memory, x.shape[1])  # u, newest first
    right = torch.zeros_like(left)  # v
    step, gap, last = torch.zeros_like(x), torch.zeros_like(x), search_state.residual
    for _ in range(iterations):
        before, gap = gap, search_state.image(x) - x
        error, change = search_state.note(x, gap), gap - before
        moved = _product(left, right, change)  # H y
        seen = _product(right, left, step)  # H^T d
        size = (step * moved).sum(dim=1, keepdim=True)
        # What is as small as rounding errors is not divided by: a map without a fixed point would seem to have one.
        tells = size.abs() > torch.finfo(x.dtype).eps ** 0.5 * step.square().sum(dim=1, keepdim=True)
        u = torch.where(tells, (step - moved) / torch.where(tells, size, 1.0), 0.0)
        left, right = (torch.cat([new[:, None], old[:, :-1]], dim=1) for new, old in ((u, left), (seen, right)))
        known = (torch.isfinite(u + seen).all(dim=1) & (error <= DIVERGENCE_LIMIT * last))[:, None, None]
        left, right = torch.where(known, left, 0.0), torch.where(known, right, 0.0)

        x, gap, left, right, last = search_state.keep(error > tolerance, x, gap, left, right, error)
        if search_state.over:
            break
        ahead, _ = search_state.sound(x - _product(left, right, gap))
        x, step = ahead, ahead - x
    return search_state.end()


def _product(left: Tensor, right: Tensor, x: Tensor) -> Tensor:
    """(-1 + sum_i u_i v_i^T) x."""
    return ((right @ x[..., None]).mT @ left).squeeze(1) - x
