"""What the library says when something is wrong: what was given, what was expected, what to do."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any


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


def shortened(names: Sequence[str]) -> str:
    """The first five names of a list that may be long."""
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


@dataclass(frozen=True)
class Expected:
    """What a setting should be: in words for an error, and as a test."""

    wanted: str
    fine: Callable[[Any], bool]

    def problem(self, name: str, value: object, why: str = "") -> list[str]:
        """One sentence, with the reason where one helps; none when the value is as expected."""
        return [] if self.fine(value) else [f"{name}={value!r}; expected {self.wanted}{why and f': {why}'}"]


def whole(least: int = 0, *, optional: bool = False) -> Expected:
    """A whole number, at least `least`. True and False are not numbers."""
    wanted = f"a whole number, at least {least}"
    return _or_none(Expected(wanted, lambda v: _is(int, v) and v >= least), optional)


def number(
    *, above: float = -math.inf, least: float = -math.inf, below: float = math.inf, optional: bool = False
) -> Expected:
    """A finite number above, at least, or below a limit."""
    limits = [(">", above), (">=", least), ("<", below)]
    wanted = " and ".join(f"{sign} {limit:g}" for sign, limit in limits if math.isfinite(limit))

    def fine(value: Any) -> bool:
        return _is(int | float, value) and math.isfinite(value) and value > above and value >= least and value < below

    return _or_none(Expected(f"a number {wanted}".strip(), fine), optional)


def broken(owner: object, rules: Mapping[str, Expected]) -> list[str]:
    """A sentence for every attribute of `owner` that is not as expected."""
    return [problem for name, rule in rules.items() for problem in rule.problem(name, getattr(owner, name))]


def _is(kind: Any, value: object) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _or_none(rule: Expected, optional: bool) -> Expected:
    return Expected(f"None or {rule.wanted}", lambda v: v is None or rule.fine(v)) if optional else rule


DURATION = Expected("a finite time > 0", number(above=0).fine)
PROBABILITY = Expected("a probability in [0, 1)", number(least=0, below=1).fine)
