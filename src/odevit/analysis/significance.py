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
"""Standard errors on either side that hold 95% of a normal distribution."""
CERTAIN = 3.0
"""Standard errors beyond which a difference is real where several were looked at."""
SHUFFLES = 10_000
"""Permutations behind a p-value."""


@dataclass(frozen=True)
class Proportion:
    """k of n, with the binomial standard error and Wilson's 95% interval, which does not collapse at 0 and 1."""

    hits: int
    count: int

    @classmethod
    def of(cls, mask: Tensor) -> Proportion:
        """How much of a mask is true."""
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
        if not self.count:
            return math.nan, math.nan
        z, n, p = Z, self.count, self.value
        middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return max(0.0, (middle - half) / (1 + z * z / n)), min(1.0, (middle + half) / (1 + z * z / n))

    def enough(self, threshold: float) -> int | None:
        """z^2 p0 (1 - p0) / (p - p0)^2: the least n whose interval around p leaves out p0; None where p is p0."""
        away = self.value - threshold
        return math.ceil(Z**2 * threshold * (1 - threshold) / away**2) if away else None

    def to_dict(self) -> dict[str, float | int | tuple[float, float]]:
        return {"value": self.value, "error": self.error, "interval": self.interval, **vars(self)}


def standard_error(values: Tensor) -> float | None:
    """std / sqrt(n), the error of a mean; None where a single value shows no spread."""
    return values.std().item() / math.sqrt(len(values)) if len(values) > 1 else None


def paired_error(a: Tensor, b: Tensor) -> float:
    """sqrt( mean d^2 - (mean d)^2 ) / sqrt(n), d = a - b on the same images: the standard error of a difference.

    Two ways of integrating answer the same images, so most of what makes an accuracy uncertain is common to both and
    cancels: only the images on which they differ count.
    """
    difference = a.double() - b.double()
    return (difference.var(unbiased=False) / len(difference)).sqrt().item()


def quantiles(values: Tensor, shares: Mapping[str, float]) -> dict[str, Tensor]:
    """Quantiles by name, of the finite values along the last dimension; NaN where there are none."""
    # The NaN at the end is ignored like the others, and makes an empty sample an ordinary one.
    finite = F.pad(torch.where(values.isfinite(), values.double(), torch.nan), (0, 1), value=torch.nan)
    return dict(zip(shares, finite.nanquantile(finite.new_tensor([*shares.values()]), dim=-1), strict=True))


def median(values: Tensor) -> Tensor:
    """Of the finite values along the last dimension."""
    return quantiles(values, {"median": 0.5})["median"]


@dataclass(frozen=True)
class Correlation:
    """Pearson's r with a permutation p-value: the share of shuffles with an |r| at least as large."""

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
    generator = torch.Generator().manual_seed(0)
    orders = torch.rand(SHUFFLES, len(a), generator=generator, dtype=torch.float64).argsort(dim=1)
    extreme = ((b[orders] @ a).abs() >= abs(r) - 1e-12).sum().item()
    return Correlation(r, (extreme + 1) / (SHUFFLES + 1), len(a))


def ranking(these: Tensor, those: Tensor) -> dict[str, float] | None:
    """P(a > b) for a of these m and b of those n, ties counted half; None where either are missing.

    1/2 says that they are alike; sqrt((m + n + 1) / (12 m n)) is the error then (Mann and Whitney).
    """
    m, n = len(these), len(those)
    if not m or not n:
        return None
    below, not_above = (torch.searchsorted(those.sort().values, these, right=right) for right in (False, True))
    value = (below + not_above).double().mean().item() / (2 * n)
    return {"value": value, "error": math.sqrt((m + n + 1) / (12 * m * n))}


def side_of_chance(ranking: Mapping[str, float]) -> int:
    """1 where a share of pairs is more than 1/2 by `CERTAIN` errors of chance, -1 where it is less, 0 in between."""
    beyond = ranking["value"] - 0.5
    return 0 if abs(beyond) <= CERTAIN * ranking["error"] else 1 if beyond > 0 else -1
