"""word ... key=value ... -> arguments of a function, typed as its signature says."""

from __future__ import annotations

import inspect
import os
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from odevit.errors import ConfigError, unknown_name

NOUNS = {int: "a whole number", float: "a number", bool: "true or false"}


@dataclass(frozen=True)
class Verb:
    """A function on the command line: words without a key are its first argument, keys are its keywords.

    Args:
        name: of the verb.
        function: annotated, with an Args section in its docstring; from these come the types and the help.
        show: prints what the function returned.
        example: a command that works.
    """

    name: str
    function: Callable[..., Any]
    show: Callable[[Any], None]
    example: str

    def run(self, words: Sequence[str]) -> None:
        """Call the function with the words, and show what it returns."""
        positional, keywords = self.parse(words)
        self.show(self.function(*positional, **keywords))

    def parse(self, words: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments; everything that is wrong with the words comes in one error."""
        subject, keys = self.arguments()
        given: list[str] = []
        keywords: dict[str, Any] = {}
        problems: list[str] = []
        for word in words:
            key, equals, text = word.partition("=")
            if not equals or "/" in key:  # a path may contain an equals sign
                given.append(word)
            elif key not in keys:
                problems.append(unknown_name("key", key, keys))
            else:
                try:
                    keywords[key] = value_of(text, keys[key])
                except ValueError as error:
                    problems.append(f"{word}; expected {error}")
        several, count = subject.endswith("s"), len(given)
        if not (count >= 1 if several else count == bool(subject)):
            wanted = f"one {subject[:-1]} or more" if several else f"one {subject}" if subject else "no words"
            got = f", but was given {' '.join(given)}" if given else ""
            problems.insert(0, f"{self.name} takes {wanted}{got}; for example: {self.example}")
        if problems:
            raise ConfigError("the command line", problems)
        return ([given] if several else given), keywords

    def arguments(self) -> tuple[str, dict[str, tuple[type, ...]]]:
        """What the words without a key are, `run` or `images`, and the types that each key can take.

        A parameter whose type cannot be written as a word is for Python alone.
        """
        parameters, hints = inspect.signature(self.function).parameters.values(), typing.get_type_hints(self.function)
        subject = next((p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD), "")
        keys = {p.name: kinds_of(hints[p.name]) for p in parameters if p.kind is p.KEYWORD_ONLY}
        return subject, {key: kinds for key, kinds in keys.items() if kinds}

    def help(self) -> str:
        """Usage, every key with its default and its meaning, and an example."""
        (subject, keys), (summary, meanings) = self.arguments(), described(self.function)
        several = subject.endswith("s")
        shown = {subject: f"{subject[:-1]}...".upper() if several else subject.upper()} if subject else {}
        usage = " ".join(["odevit", self.name, *shown.values(), *(["[key=value ...]"] if keys else [])])
        for key in keys:
            default = inspect.signature(self.function).parameters[key].default
            shown[key] = f"{key}={'' if default is None else default}"
        rows = [(" ".join(shown[name] for name in names), text) for names, text in meanings if names[0] in shown]
        return "\n".join([usage, "", summary, "", *table(rows), f"Example: {self.example}", ""])


def kinds_of(hint: Any) -> tuple[type, ...]:
    """The types that a word can become: bool, int, float, str, NoneType; also `list` where several may be given."""
    if hint in (bool, int, float, str, type(None)):
        return (hint,)
    if hint is os.PathLike or typing.get_origin(hint) is os.PathLike:
        return (str,)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        parts = [kinds_of(part) for part in typing.get_args(hint)]
        return tuple(dict.fromkeys(kind for kinds in parts for kind in kinds)) if all(parts) else ()
    if typing.get_origin(hint) in (Sequence, list, tuple):
        return (*kinds_of(typing.get_args(hint)[0]), list)
    return ()


def value_of(text: str, kinds: tuple[type, ...]) -> Any:
    """The text as the first of these types that it can be; a ValueError says what was expected.

    A string stays one whatever it looks like: a folder may be called `nan`, `1e3` or `true`.
    """
    scalars = [kind for kind in (bool, int, float, str) if kind in kinds]
    if list in kinds and "," in text:
        return [value_of(part, tuple(scalars)) for part in text.split(",") if part]
    if str not in scalars and type(None) in kinds and text.lower() in ("none", "null"):
        return None
    for kind in scalars:
        if kind is bool and text.lower() in ("true", "false"):
            return text.lower() == "true"
        if kind is not bool:
            try:
                return kind(text)
            except ValueError:
                continue
    wanted = " or ".join(NOUNS[kind] for kind in scalars)
    raise ValueError(wanted + (", or several separated by commas" if list in kinds else ""))


def described(function: Callable[..., Any]) -> tuple[str, list[tuple[list[str], str]]]:
    """What the docstring says before its Args section, and for each line of that section the names and the meaning."""
    before, _, section = inspect.cleandoc(function.__doc__ or "").partition("\nArgs:\n")
    entries: list[tuple[list[str], str]] = []
    for line in textwrap.dedent(section).splitlines():
        if line.startswith(" "):
            entries[-1] = (entries[-1][0], f"{entries[-1][1]} {line.strip()}")
        elif line:
            names, _, text = line.partition(": ")
            entries.append((names.split(", "), text))
    return before.strip(), entries


def table(rows: Iterable[tuple[str, str]], width: int = 110) -> list[str]:
    """Two columns, the second one wrapped; an empty line after them."""
    rows = list(rows)
    left = min(max((len(key) for key, _ in rows), default=0), 30) + 4
    lines = []
    for key, text in rows:
        wrapped = textwrap.wrap(text, width - left) or [""]
        if len(key) + 4 > left:
            lines.append(f"  {key}")
            key = ""
        lines += [f"  {key:<{left - 2}}{wrapped[0]}".rstrip(), *(" " * left + line for line in wrapped[1:])]
    return [*lines, ""] if lines else []


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[str]) -> None:
    """Print rows under a header, to the right except for the columns named in `left`.

    Into a file or a pipe the table has its full width, since nobody can widen those.
    """
    from rich.console import Console
    from rich.table import Table

    shown = Table(box=None, header_style="bold")
    for name in header:
        shown.add_column(name, justify="left" if name in left else "right")
    for row in rows:
        shown.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 120).print(shown)
