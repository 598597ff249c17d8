"""t_n = t0 + (t1 - t0) g(n / N): grids that are not uniform."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

from odevit.core.base import HOOKS
from odevit.core.solver_config import Grid
from odevit.registry import Registry

GRIDS: Registry[Callable[[float, float], float]] = Registry("grid")
"""g(u, ratio), increasing from g(0) = 0 to g(1) = 1."""
RATIO = 10.0


@GRIDS.register("uniform")
def uniform(u: float, ratio: float = 1.0) -> float:
    """g(u) = u."""
    return u


@GRIDS.register("geometric")
def geometric(u: float, ratio: float = RATIO) -> float:
    """g(u) = (r^u - 1) / (r - 1): each step is r^{1/N} times as long as the one before.

    The noise levels of a variance-exploding diffusion, sigma_n = sigma_min (sigma_max / sigma_min)^{n/N} (Song et al.
    2021), as times. With r > 1 the first steps are short, with r < 1 the last ones.
    """
    return u if ratio == 1.0 else math.expm1(u * math.log(ratio)) / math.expm1(math.log(ratio))


@HOOKS.register("grid_shares")
def grid_shares(grid: Grid, steps: int) -> list[float]:
    """g(n / N), n = 0, ..., N; a grid of numbers is interpolated linearly."""
    if isinstance(grid, str):
        name, _, ratio = grid.partition(":")
        return [GRIDS[name](n / steps, _ratio(ratio) or RATIO) for n in range(steps + 1)]
    shares = []
    for n in range(steps + 1):
        position = n / steps * (len(grid) - 1)
        k = min(int(position), len(grid) - 2)
        shares.append(grid[k] + (position - k) * (grid[k + 1] - grid[k]))
    return shares


@HOOKS.register("grid_problem")
def grid_problem(grid: object) -> str | None:
    """What is wrong with a grid, as a sentence; None when nothing is."""
    expected = "expected 'uniform', 'geometric', 'geometric:RATIO' with a ratio > 0, or shares from 0 to 1, increasing"
    if isinstance(grid, str):
        name, colon, ratio = grid.partition(":")
        if problem := GRIDS.problem(name):
            return problem
        return None if not colon or _ratio(ratio) is not None else f"grid={grid!r}; {expected}"
    shares = list(grid) if isinstance(grid, list | tuple) else []
    numbers = all(isinstance(share, int | float) and not isinstance(share, bool) for share in shares)
    rising = numbers and len(shares) >= 2 and all(early < late for early, late in pairwise(shares))
    return None if rising and shares[0] == 0 and shares[-1] == 1 else f"grid={grid!r}; {expected}"


def _ratio(text: str) -> float | None:
    try:
        ratio = float(text)
    except ValueError:
        return None
    return ratio if 0 < ratio < math.inf else None
