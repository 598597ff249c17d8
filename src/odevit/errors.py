"""Errors that list every problem: what was given, what was expected, what to type. Rules for settings."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any


class OdeVitWarning(UserWarning):
    """Something is allowed, but probably not intended."""


class IntegrationWarning(OdeVitWarning):
    """A trajectory did not reach its end, or is not finite: the result is not valid."""


class IntegrationError(ValueError):
    """The same as an error: in training, or with on_failure="raise"."""


class ConfigError(ValueError):
    """All the problems of one configuration, together."""

    def __init__(self, subject: str, problems: Sequence[str]) -> None:
        self.subject, self.problems = subject, list(problems)
        listed = "\n".join(f"  - {problem}" for problem in self.problems)
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        super().__init__(f"{subject} has {count}:\n{listed}")


MAX_LISTED = 40
"""An error lists at most this many names."""


def unknown_name(kind: str, given: object, known: Iterable[str]) -> str:
    """The error for an unknown name, with the known names and the nearest match."""
    names = sorted(known)
    near = get_close_matches(str(given), names, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    listed = ", ".join(names) if len(names) <= MAX_LISTED else f"{len(names)} names, which --help lists"
    return f"unknown {kind} {given!r}; known: {listed}.{hint}"


def refuse(subject: str, problems: Iterable[str]) -> None:
    """Raise a ConfigError with all problems, if there are any."""
    if listed := list(problems):
        raise ConfigError(subject, listed)


def misspelt_keys(keys: Iterable[str], known: Sequence[str]) -> list[str]:
    """A sentence for every key that is nearly, but not exactly, a known one."""
    near = {key: get_close_matches(key, known, n=1, cutoff=0.75) for key in keys}
    return [f"unknown key {key!r}. Did you mean {match[0]!r}?" for key, match in near.items() if match]


def shortened(names: Sequence[str]) -> str:
    """The first five names, separated by commas."""
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


@dataclass(frozen=True)
class Expected:
    """What a setting may be: in words, for an error message, and as a test."""

    description: str
    accepts: Callable[[Any], bool]

    def problem(self, name: str, value: object, why: str = "") -> list[str]:
        """One sentence, with the reason if one is given; an empty list if the value is accepted."""
        return [] if self.accepts(value) else [f"{name}={value!r}; expected {self.description}{why and f': {why}'}"]


def integer(minimum: int = 0, maximum: float = math.inf, *, optional: bool = False) -> Expected:
    """minimum <= n <= maximum. True and False are not integers."""
    upper = f" and at most {maximum:,}" if math.isfinite(maximum) else ""
    return _or_none(
        Expected(f"a whole number, at least {minimum}{upper}", lambda v: _is(int, v) and minimum <= v <= maximum),
        optional,
    )


def real(
    *,
    above: float = -math.inf,
    minimum: float = -math.inf,
    below: float = math.inf,
    maximum: float = math.inf,
    optional: bool = False,
) -> Expected:
    """A finite number with above < x < below and minimum <= x <= maximum."""
    limits = [(">", above), (">=", minimum), ("<", below), ("<=", maximum)]
    description = " and ".join(f"{sign} {limit:g}" for sign, limit in limits if math.isfinite(limit))

    def accepts(value: Any) -> bool:
        is_finite = _is(int | float, value) and abs(value) < math.inf
        return is_finite and above < value < below and minimum <= value <= maximum

    return _or_none(Expected(f"a number {description}".strip(), accepts), optional)


def one_of(*names: str) -> Expected:
    """One of a few names."""
    return Expected(" or ".join(names), lambda value: value in names)


def list_of(rule: Expected, *, optional: bool = False) -> Expected:
    """A sequence whose every element is accepted by `rule`."""

    def accepts(values: Any) -> bool:
        return isinstance(values, Sequence) and not isinstance(values, str) and all(map(rule.accepts, values))

    return _or_none(Expected(f"several, each {rule.description}", accepts), optional)


def validate(owner: object, rules: Mapping[str, Expected]) -> list[str]:
    """One sentence for every attribute of `owner` that breaks its rule."""
    return [problem for name, rule in rules.items() for problem in rule.problem(name, getattr(owner, name))]


def option_problems(key: str, options: Mapping[str, Any], rules: Mapping[str, Expected], owner: str) -> list[str]:
    """One sentence for every option under `key` that `owner` does not have, or that breaks its rule."""
    problems = []
    for name, value in options.items():
        if name in rules:
            problems += rules[name].problem(f"{key}.{name}", value)
        elif rules:
            problems.append(f"{key}: {unknown_name('option', name, rules)}")
        else:
            problems.append(f"{key}.{name}={value!r}, but {owner} has no options; leave it out")
    return problems


def writable(key: str, path: str | os.PathLike[str] | None, *, folder: bool = False) -> list[str]:
    """One sentence if a path cannot be written, to be shown before the work begins."""
    if path is None:
        return []
    given, kind = f"{key}={os.fspath(path)!r}", "a folder" if folder else "a file"
    place = Path(path).expanduser()
    if place.exists() and place.is_dir() != folder:
        return [f"{given} is {'a file' if folder else 'a folder'}; expected the path of {kind}"]
    above = next(parent for parent in (place, *place.absolute().parents) if parent.exists())
    try:
        with TemporaryFile(dir=above if above.is_dir() else above.parent):
            if place.name and (folder or place.parent.is_dir()):
                return []
            problem = "is not a name" if not place.name else f"lies in {place.parent}, which does not exist"
    except OSError as error:
        problem = f"cannot be written ({error.strerror})"
    return [f"{given} {problem}; expected the path of {kind} to write to"]


@contextmanager
def with_key_prefix(prefix: str, names: Iterable[str]) -> Iterator[None]:
    """In this block, errors name the key to type instead of the argument: image_size=8 -> data.image_size=8."""
    names = list(names)
    try:
        yield
    except ConfigError as error:
        raise ConfigError(error.subject, [prefix_keys(prefix, names, problem) for problem in error.problems]) from error
    except ValueError as error:
        raise ValueError(prefix_keys(prefix, names, str(error))) from error


def prefix_keys(prefix: str, names: Iterable[str], text: str) -> str:
    """A message with `prefix` before each of the names that is followed by "=" or ":"."""
    named = re.sub(rf"(?<![\w.])({'|'.join(names)})(?=[=:])", rf"{prefix}.\1", text)
    return named.replace("=True", "=true").replace("=False", "=false")


def _is(kind: Any, value: object) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _or_none(rule: Expected, optional: bool) -> Expected:
    return Expected(f"None or {rule.description}", lambda v: v is None or rule.accepts(v)) if optional else rule


BOOLEAN = Expected("true or false", lambda value: isinstance(value, bool))
MAX_TIME = 1e36
"""Products with larger times overflow in single precision."""
DURATION = Expected("a finite time > 0", real(above=0, maximum=MAX_TIME).accepts)
FRACTION = Expected("a share in [0, 1]", real(minimum=0, maximum=1).accepts)
POSITIVE_FRACTION = Expected("a share in (0, 1]", real(above=0, maximum=1).accepts)
PROBABILITY = Expected("a probability in [0, 1)", real(minimum=0, below=1).accepts)
