"""t_n = t0 + (t1 - t0) g(n / N): where the steps of a fixed-step solve lie."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from odevit.registry import Registry

Grid = str | tuple[float, ...]
"""g: a name, "geometric:10", or shares of the horizon from 0 to 1 through which g runs straight."""

GRIDS: Registry[Callable[[float, float], float]] = Registry("grid")
"""g(u, ratio), increasing from g(0) = 0 to g(1) = 1."""
RATIO = 10.0


@GRIDS.register("uniform")
def uniform(u: float, ratio: float = 1.0) -> float:
    """g(u) = u."""
    return u


@GRIDS.register("geometric")
def geometric(u: float, ratio: float = RATIO) -> float:
    """g(u) = (r^u - 1) / (r - 1): every step is longer than the one before by the same factor, r^{1/N}.

    The noise levels of a variance-exploding diffusion, sigma_n = sigma_min (sigma_max / sigma_min)^{n/N} (Song et al.
    2021), as times. With r > 1 the steps are short where the trajectory begins, with r < 1 where it ends.
    """
    return u if ratio == 1.0 else math.expm1(u * math.log(ratio)) / math.expm1(math.log(ratio))


def grid_problem(grid: object) -> str | None:
    """What is wrong with a grid, as a sentence; None when nothing is."""
    expected = "expected 'uniform', 'geometric', 'geometric:RATIO' with a ratio > 0, or shares from 0 to 1, increasing"
    if isinstance(grid, str):
        name, colon, number = grid.partition(":")
        if problem := GRIDS.problem(name):
            return problem
        return None if not colon or _ratio(number) is not None else f"grid={grid!r}; {expected}"
    shares = list(grid) if isinstance(grid, list | tuple) else []
    numbers = all(isinstance(share, int | float) and not isinstance(share, bool) for share in shares)
    rising = numbers and len(shares) >= 2 and all(early < late for early, late in pairwise(shares))
    return None if rising and shares[0] == 0 and shares[-1] == 1 else f"grid={grid!r}; {expected}"


def share(grid: Grid, u: float) -> float:
    """g(u)."""
    if isinstance(grid, str):
        name, _, number = grid.partition(":")
        return GRIDS[name](u, _ratio(number) or RATIO)
    place = u * (len(grid) - 1)
    k = min(int(place), len(grid) - 2)
    return grid[k] + (place - k) * (grid[k + 1] - grid[k])


def edges(grid: Grid, steps: int, t0: float, t1: float) -> list[float]:
    """t_0, ..., t_N, which begin at t0 and end at t1 exactly."""
    if grid == "uniform":
        return [t0 + (t1 - t0) * n / steps for n in range(steps + 1)]
    return [t0, *(t0 + (t1 - t0) * share(grid, n / steps) for n in range(1, steps)), t1]


def lengths(grid: Grid, times: Sequence[float]) -> list[float]:
    """t_{n+1} - t_n; those of a uniform grid are equal to the last bit."""
    if grid == "uniform":
        return [(times[-1] - times[0]) / (len(times) - 1)] * (len(times) - 1)
    return [late - early for early, late in pairwise(times)]


def _ratio(number: str) -> float | None:
    try:
        ratio = float(number)
    except ValueError:
        return None
    return ratio if 0 < ratio < math.inf else None
