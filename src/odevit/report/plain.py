"""Tensor -> list, infinity -> null: numbers as JSON can hold them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

from torch import Tensor

DIGITS = 6
"""Significant digits that are kept; single precision has about seven."""


def plain(value: Any) -> Any:
    """The same as dictionaries, lists and numbers; what is not finite becomes None, for JSON has no word for it."""
    if isinstance(value, Tensor):
        return plain(value.detach().cpu().tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return value


def quantiles(values: Tensor, *shares: float) -> list[float]:
    """Quantiles of the finite values; NaN where there are none."""
    finite = values[values.isfinite()].double().flatten()
    if not len(finite):
        return [math.nan] * len(shares)
    return [finite.quantile(share).item() for share in shares]
