"""value ± error: how far a number measured on a sample can be trusted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Share:
    """k of n, with the binomial standard error and Wilson's 95% interval, which does not collapse at 0 and 1."""

    hits: int
    count: int

    @property
    def value(self) -> float:
        return self.hits / self.count if self.count else math.nan

    @property
    def error(self) -> float:
        """sqrt( p (1 - p) / n )."""
        p = self.value
        return math.sqrt(p * (1 - p) / self.count) if self.count else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's interval at z = 1.96."""
        if not self.count:
            return math.nan, math.nan
        z, n, p = 1.96, self.count, self.value
        middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return max(0.0, (middle - half) / (1 + z * z / n)), min(1.0, (middle + half) / (1 + z * z / n))

    def numbers(self) -> dict[str, float | int | list[float]]:
        return {
            "value": self.value,
            "error": self.error,
            "interval": list(self.interval),
            "hits": self.hits,
            "count": self.count,
        }


def paired_error(a: Tensor, b: Tensor) -> float:
    """sqrt( mean d^2 - (mean d)^2 ) / sqrt(n), d = a - b on the same images: the standard error of a difference.

    Two ways of integrating answer the same images, so most of what makes an accuracy uncertain is common to both and
    cancels: only the images on which they differ count.
    """
    difference = a.double() - b.double()
    return (difference.var(unbiased=False) / len(difference)).sqrt().item()


def quantiles(values: Tensor, *shares: float) -> list[float]:
    """Quantiles of the finite values; NaN where there are none."""
    finite = values[values.isfinite()].double().flatten()
    if not len(finite):
        return [math.nan] * len(shares)
    return [finite.quantile(share).item() for share in shares]


@dataclass(frozen=True)
class Correlation:
    """Pearson's r with a permutation p-value: the share of shuffles with an |r| at least as large."""

    r: float
    p: float
    count: int


def correlation(x: Sequence[float], y: Sequence[float], *, shuffles: int = 10_000, seed: int = 0) -> Correlation | None:
    """sum (x - <x>)(y - <y>) / (n s_x s_y); None for fewer than three points, or if x or y is constant."""
    a, b = (torch.tensor(values, dtype=torch.float64) for values in (x, y))
    finite = torch.isfinite(a) & torch.isfinite(b)
    a, b = a[finite], b[finite]
    if len(a) < 3 or a.std() == 0 or b.std() == 0:
        return None
    a, b = (a - a.mean()) / a.norm(), (b - b.mean()) / b.norm()
    a, b = a / a.norm(), b / b.norm()
    r = (a @ b).item()
    generator = torch.Generator().manual_seed(seed)
    orders = torch.rand(shuffles, len(a), generator=generator, dtype=torch.float64).argsort(dim=1)
    extreme = ((b[orders] @ a).abs() >= abs(r) - 1e-12).sum().item()
    return Correlation(r, (extreme + 1) / (shuffles + 1), len(a))
