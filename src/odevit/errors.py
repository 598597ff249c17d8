"""What the library says when something is wrong: what was given, what was expected, what to do."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from difflib import get_close_matches


class OdeVitWarning(UserWarning):
    """Something is allowed but probably not what was meant."""


class ConfigError(ValueError):
    """All the problems of one configuration, together."""

    def __init__(self, subject: str, problems: Sequence[str]) -> None:
        self.problems = list(problems)
        listed = "\n".join(f"  - {problem}" for problem in self.problems)
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        super().__init__(f"{subject} has {count}:\n{listed}")


def unknown_name(kind: str, given: object, known: Iterable[str]) -> str:
    """The sentence for a name that is not in a registry: the known names and the nearest match."""
    names = sorted(known)
    near = get_close_matches(str(given), names, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"unknown {kind} {given!r}; known: {', '.join(names)}.{hint}"


def is_whole(value: object, least: int = 0) -> bool:
    """Whether a value is a whole number, at least `least`. True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_number(value: object) -> bool:
    """Whether a value is a finite number. True and False are not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
