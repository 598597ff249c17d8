"""value ± error: how far a number measured on a sample can be trusted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

PERCENTILES = {"5%": 0.05, "50%": 0.5, "95%": 0.95}
"""The middle 90% of a sample, and its median."""
Z = 1.96
"""Standard errors on either side of an estimate that hold 95% of a normal distribution."""
SIGMAS = 3.0
"""A difference of more standard errors than this is significant, also where several were compared."""
SHUFFLES = 10_000
"""Permutations behind a p-value."""

# scipy.stats is imported where it is used: it takes half a second, and `import odevit` imports this module.


@dataclass(frozen=True)
class Proportion:
    """k of n, with the binomial standard error and Wilson's 95% interval, which does not collapse at 0 and 1."""

    hits: int
    count: int

    @classmethod
    def of(cls, mask: Tensor) -> Proportion:
        """The proportion of true values in a mask."""
        return cls(int(mask.sum()), len(mask))

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
        """Wilson's interval: every p0 with |p - p0| <= z sqrt( p0 (1 - p0) / n )."""
        from scipy.stats import binomtest, norm

        if not self.count:
            return math.nan, math.nan
        ends = binomtest(self.hits, self.count).proportion_ci(2 * norm.cdf(Z) - 1, method="wilson")
        return float(ends.low), float(ends.high)

    def sample_size(self, threshold: float) -> int | None:
        """z^2 p0 (1 - p0) / (p - p0)^2: the least n whose interval around p excludes p0; None where p is p0."""
        away = self.value - threshold
        return math.ceil(Z**2 * threshold * (1 - threshold) / away**2) if away else None

    def to_dict(self) -> dict[str, float | int | tuple[float, float]]:
        return {"value": self.value, "error": self.error, "interval": self.interval, **vars(self)}


def standard_error(values: Tensor) -> float | None:
    """std / sqrt(n), the error of a mean; None for fewer than two values."""
    return values.std().item() / math.sqrt(len(values)) if len(values) > 1 else None


def paired_error(a: Tensor, b: Tensor) -> float:
    """sqrt( mean d^2 - (mean d)^2 ) / sqrt(n), d = a - b on the same images: the standard error of a difference.

    Two solver settings answer the same images, so most of the uncertainty of their accuracies is common to both and
    cancels: only the images on which they differ count.
    """
    difference = a.double() - b.double()
    return (difference.var(unbiased=False) / len(difference)).sqrt().item()


def quantiles(values: Tensor, shares: Mapping[str, float]) -> dict[str, Tensor]:
    """Quantiles by name, of the finite values along the last dimension; NaN where there are none."""
    # nanquantile refuses an empty sample: a NaN is added at the end, which is ignored like the others.
    finite = F.pad(torch.where(values.isfinite(), values.double(), torch.nan), (0, 1), value=torch.nan)
    return dict(zip(shares, finite.nanquantile(finite.new_tensor([*shares.values()]), dim=-1), strict=True))


def median(values: Tensor) -> Tensor:
    """The median of the finite values along the last dimension."""
    return quantiles(values, {"median": 0.5})["median"]


@dataclass(frozen=True)
class Correlation:
    """Pearson's r with a permutation p-value: the proportion of shuffles with an |r| at least as large."""

    r: float
    p: float
    count: int


def correlation(x: Sequence[float], y: Sequence[float]) -> Correlation | None:
    """sum (x - <x>)(y - <y>) / (n s_x s_y); None for fewer than three points, or if x or y is constant."""
    points = torch.tensor([x, y], dtype=torch.float64)
    points = points[:, points.isfinite().all(dim=0)]
    if points.shape[1] < 3 or (points.std(dim=1) == 0).any():
        return None
    a, b = F.normalize(points - points.mean(dim=1, keepdim=True))
    r = (a @ b).item()
    # Shuffled here and not in scipy: its two-sided p-value is twice the smaller tail, and records hold this one.
    generator = torch.Generator().manual_seed(0)
    orders = torch.rand(SHUFFLES, len(a), generator=generator, dtype=torch.float64).argsort(dim=1)
    extreme = ((b[orders] @ a).abs() >= abs(r) - 1e-12).sum().item()
    return Correlation(r, (extreme + 1) / (SHUFFLES + 1), len(a))


def mann_whitney(a: Tensor, b: Tensor) -> dict[str, float] | None:
    """U / (m n) = P(a > b) for m values a and n values b, ties counted half; None where either is empty.

    1/2 means that they are alike. The error sqrt((m + n + 1) / (12 m n)) is that of chance alone.
    """
    from scipy.stats import mannwhitneyu

    m, n = len(a), len(b)
    if not m or not n:
        return None
    value = mannwhitneyu(a.cpu(), b.cpu(), method="asymptotic").statistic / (m * n)
    return {"value": float(value), "error": math.sqrt((m + n + 1) / (12 * m * n))}


def significant_side(test: Mapping[str, float]) -> int:
    """1 where P(a > b) is above 1/2 by more than `SIGMAS` errors, -1 where it is below, 0 in between."""
    beyond = test["value"] - 0.5
    return 0 if abs(beyond) <= SIGMAS * test["error"] else 1 if beyond > 0 else -1
