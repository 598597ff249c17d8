"""Sentences about bad numbers: an empty list, or what was given and what was expected."""

from __future__ import annotations

import math


def whole(name: str, value: object, least: int = 1, why: str = "") -> list[str]:
    """The problem with what should be a whole number of at least `least`, with a reason where one helps."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        return []
    return [f"{name}={value!r}; expected a whole number, at least {least}{why and f': {why}'}"]


def positive(name: str, value: float, noun: str = "number") -> list[str]:
    """The problem with what should be finite and above 0."""
    return [] if math.isfinite(value) and value > 0 else [f"{name}={value}; expected a finite {noun} > 0"]
