"""x = g(x): Newton's method, its linear equation solved by GMRES, every sample for itself."""

from __future__ import annotations

import torch
from torch import Tensor

from odevit.solvers.fixed_point import SEARCHES, FixedPoint, FixedPointState, Map
from odevit.solvers.precision import only_inside


@SEARCHES.register("newton_krylov")
@torch.no_grad()
@only_inside
def newton_krylov(g: Map, x0: Tensor, *, inner: int = 6, tolerance: float = 1e-4, iterations: int = 50) -> FixedPoint:
    """x_{n+1} = x_n + d, (1 - J) d = g(x_n) - x_n, J = g'(x_n), by `inner` steps of GMRES (Knoll and Keyes 2004).

    J v = (g(x + e v) - g(x)) / e: no derivative of g is needed, and no matrix. A step that made the residual grow is
    taken back, and a plain one made in its place, x_{n+1} = g(x_n), as the trajectory would.

    Args:
        g, x0, tolerance, iterations: as for `anderson`; `iterations` counts every evaluation of g.
        inner: how many directions GMRES may use for a step; each costs an evaluation.
    """
    search_state, x = FixedPointState(g, x0), x0.flatten(1)
    plain, last, left = x, search_state.residual, iterations
    while left > 0:
        image, left = search_state.image(x), left - 1
        error = search_state.note(x, image - x)
        x, image, plain, error, last = search_state.keep(error > tolerance, x, image, plain, error, last)
        if search_state.over:
            break
        directions = min(inner, left - 1)  # and one evaluation to see what came of it
        ahead = x + _gmres(search_state, x, image, directions) if directions > 0 else image
        left -= max(directions, 0)
        astray = error > last
        x, _ = search_state.sound(torch.where(astray[:, None], plain, ahead))
        plain, last = image, torch.where(astray, torch.inf, error)
    return search_state.end()


def _gmres(search_state: FixedPointState, x: Tensor, image: Tensor, directions: int) -> Tensor:
    """d + (r - A d), d of the span of r, A r, ... that makes |r - A d| smallest; A = 1 - J, r = g(x) - x."""
    smallest = torch.finfo(x.dtype).tiny
    gap = image - x
    size = gap.norm(dim=1)
    # Far enough apart to be told from each other by what has rounding errors of eps |x|.
    far = torch.finfo(x.dtype).eps ** 0.5 * torch.maximum(x.norm(dim=1), size).clamp_min(smallest)[:, None]
    basis = [gap / size.clamp_min(smallest)[:, None]]
    table = x.new_zeros(len(x), directions + 1, directions, dtype=torch.float64)
    for column in range(directions):
        v = basis[-1]
        w = v - (search_state.image(x + far * v) - image) / far
        for row, u in enumerate(basis):
            share = (u * w).sum(dim=1)
            table[:, row, column] = share.double()
            w = w - share[:, None] * u
        length = w.norm(dim=1)
        table[:, column + 1, column] = length.double()
        basis.append(w / length.clamp_min(smallest)[:, None])
    goal = torch.zeros_like(table[:, :, 0])
    goal[:, 0] = size.double()
    finite = torch.isfinite(table).all(dim=2).all(dim=1)
    table = torch.where(finite[:, None, None], table, 0.0)
    # What is as small as the error of the differences is not divided by: a map without a fixed point would look as if
    # it had one far away.
    weights = torch.linalg.pinv(table, atol=10 * torch.finfo(x.dtype).eps ** 0.5) @ goal[..., None]
    # What the directions leave over takes a plain step.
    over = goal[..., None] - table @ weights
    over[:, :-1] += weights
    step = (torch.stack(basis, dim=1) * over.to(x.dtype)).sum(dim=1)
    return torch.where(finite[:, None], step, gap)
