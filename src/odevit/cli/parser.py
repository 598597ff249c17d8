"""word ... key=value ... -> arguments of a function, typed as its signature says."""

from __future__ import annotations

import inspect
import os
import re
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from odevit.errors import ConfigError, unknown_name

KINDS: dict[type, tuple[str, Callable[[str], Any]]] = {
    bool: ("true or false", lambda text: {"true": True, "false": False}[text.lower()]),
    int: ("a whole number", int),
    float: ("a number", float),
    str: ("text", str),
    types.NoneType: ("none", lambda text: {"none": None, "null": None}[text.lower()]),
}
"""What a word can become, the strictest first: its name in an error, and how to read it.

A string stays one whatever it looks like: a folder may be called `nan`, `1e3`, `true` or `none`.
"""


@dataclass(frozen=True)
class Command:
    """A function on the command line: words without a key are its first argument, keys are its keywords.

    Args:
        name: of the verb.
        function: annotated, with an Args section in its docstring; from these come the types and the help.
        show: prints what the function returned.
        examples: commands that work.
    """

    name: str
    function: Callable[..., Any]
    show: Callable[[Any], None]
    examples: Sequence[str]

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
            problems.insert(0, f"{self.name} takes {wanted}{got}; for example: {self.examples[0]}")
        if problems:
            raise ConfigError("the command line", problems)
        return ([given] if several else given), keywords

    def arguments(self) -> tuple[str, dict[str, set[type]]]:
        """What the words without a key are, `run` or `images`, and the types that each key can take.

        A parameter whose type cannot be written as a word is for Python alone.
        """
        parameters, hints = inspect.signature(self.function).parameters.values(), typing.get_type_hints(self.function)
        subject = next((p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD), "")
        keys = {p.name: kinds_of(hints[p.name]) for p in parameters if p.kind is p.KEYWORD_ONLY}
        return subject, {key: kinds for key, kinds in keys.items() if kinds}

    def page(self) -> dict[str, Any]:
        """The help: usage, what the verb does, every key with its default and its meaning, and examples."""
        subject, keys = self.arguments()
        typed = {subject: re.sub("S$", "...", subject.upper())} if subject else {}
        usage = " ".join(["odevit", self.name, *typed.values(), *(["[key=value ...]"] if keys else [])])
        for key in keys:
            default = inspect.signature(self.function).parameters[key].default
            default = ",".join(map(str, default)) if isinstance(default, tuple) else default
            typed[key] = f"{key}={'' if default is None else default}"
        about, meanings = described(self.function)
        rows = [[" ".join(typed[name] for name in names), text] for names, text in meanings if names[0] in typed]
        return {"usage": usage, "about": about, "tables": [["", rows]] if rows else [], "examples": [*self.examples]}


def kinds_of(hint: Any) -> set[type]:
    """The `KINDS` that a hint allows, and `list` where several may be given; none where a part of it is no kind."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint in KINDS:
        return {hint}
    if origin is os.PathLike:
        return {str}
    if origin is Sequence:
        return {*kinds_of(parts[0]), list}
    kinds = [kinds_of(part) for part in parts] if origin in (typing.Union, types.UnionType) else []
    return set().union(*kinds) if all(kinds) else set()


def value_of(text: str, kinds: set[type]) -> Any:
    """The text as the first kind that it can be; a ValueError says what was expected."""
    if list in kinds and text[:1] + text[-1:] == "[]":
        return [
            value_of(part.strip(), kinds - {list, types.NoneType}) for part in text[1:-1].split(",") if part.strip()
        ]
    if list in kinds and "," in text:
        return [value_of(part, kinds - {list, types.NoneType}) for part in text.split(",") if part]
    for kind, (_, read) in KINDS.items():
        if kind in kinds:
            with suppress(KeyError, ValueError):
                return read(text)
    wanted = " or ".join(name for kind, (name, _) in KINDS.items() if kind in kinds and kind is not types.NoneType)
    raise ValueError(wanted + (", or several separated by commas" if list in kinds else ""))


def described(function: Callable[..., Any]) -> tuple[str, list[tuple[list[str], str]]]:
    """What a docstring says before its Args section, and for each entry of that section the names and the meaning."""
    before, _, section = inspect.cleandoc(function.__doc__ or "").partition("\nArgs:\n")
    entries = re.findall(r"^(\w[\w, ]*): (.*(?:\n .*)*)", textwrap.dedent(section), flags=re.MULTILINE)
    return before.strip(), [(names.split(", "), " ".join(text.split())) for names, text in entries]


def print_table(rows: Iterable[Sequence[str]], header: Sequence[str] = ("", ""), left: Sequence[str] = ("",)) -> None:
    """Print rows, under a header if it has words, to the right except for the columns named in `left`.

    Into a file or a pipe the table has its full width, since nobody can widen those.
    """
    from rich.console import Console
    from rich.table import Table

    shown = Table(box=None, header_style="bold", show_header=any(header))
    for name in header:
        shown.add_column(name, justify="left" if name in left else "right")
    for row in rows:
        shown.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 120, markup=False).print(shown)
