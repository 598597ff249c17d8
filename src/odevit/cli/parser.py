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
from importlib import import_module
from typing import Any

from odevit.errors import ConfigError, unknown_name

KINDS: dict[type, tuple[str, Callable[[str], Any]]] = {
    bool: ("true or false", lambda text: {"true": True, "false": False}[text.lower()]),
    int: ("a whole number", int),
    float: ("a number", float),
    str: ("text", str),
    types.NoneType: ("none", lambda text: {"none": None, "null": None}[text.lower()]),
}
"""Types that a value can have, the strictest first: the name in an error, and how to read it.

A parameter of type str takes any text as it is: a folder may be called `nan`, `1e3`, `true` or `none`.
"""


@dataclass(frozen=True)
class Command:
    """A function on the command line: words without a key are its first argument, keys are its keyword arguments.

    Args:
        name: of the command.
        target: the function, or "module:function" if its module is to be imported on first use. Types and help come
            from its annotations and from the Args section of its docstring.
        show: prints what the function returned; may return an exit status.
        examples: commands that work.
    """

    name: str
    target: Callable[..., Any] | str
    show: Callable[[Any], int | None]
    examples: Sequence[str]

    @property
    def function(self) -> Callable[..., Any]:
        if not isinstance(self.target, str):
            return self.target
        module, _, name = self.target.partition(":")
        found: Callable[..., Any] = getattr(import_module(module), name)
        return found

    def run(self, words: Sequence[str]) -> int:
        """Call the function with the words, print what it returns, and return the exit status."""
        positional, keywords = self.parse(words)
        return self.show(self.function(*positional, **keywords)) or 0

    def parse(self, words: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments; one error lists everything that is wrong with the words."""
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
                    keywords[key] = parse_value(text, keys[key])
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
        """The name of the first argument, `run` or `images`, and the types that each key can take.

        Parameters of other types than `KINDS` cannot be given on the command line.
        """
        function = self.function
        parameters, hints = inspect.signature(function).parameters.values(), typing.get_type_hints(function)
        subject = next((p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD), "")
        keys = {p.name: find_kinds(hints[p.name]) for p in parameters if p.kind is p.KEYWORD_ONLY}
        return subject, {key: kinds for key, kinds in keys.items() if kinds}

    def help(self) -> dict[str, Any]:
        """Usage, description, examples, and tables of keys: a title, and "key=default" -> meaning."""
        subject, keys = self.arguments()
        typed = {subject: re.sub("S$", "...", subject.upper())} if subject else {}
        usage = " ".join(["odevit", self.name, *typed.values(), *(["[key=value ...]"] if keys else [])])
        for key in keys:
            default = inspect.signature(self.function).parameters[key].default
            default = ",".join(map(str, default)) if isinstance(default, tuple) else default
            typed[key] = f"{key}={'' if default is None else default}"
        about, meanings = parse_docstring(self.function)
        rows = {" ".join(typed[name] for name in names): text for names, text in meanings if names[0] in typed}
        return {"usage": usage, "about": about, "tables": {"": rows} if rows else {}, "examples": [*self.examples]}


def find_kinds(hint: Any) -> set[type]:
    """The `KINDS` that a hint allows, and `list` where several may be given; empty if any part is of another type."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint in KINDS:
        return {hint}
    if origin is os.PathLike:
        return {str}
    if origin is Sequence:
        return {*find_kinds(parts[0]), list}
    kinds = [find_kinds(part) for part in parts] if origin in (typing.Union, types.UnionType) else []
    return set().union(*kinds) if all(kinds) else set()


def parse_value(text: str, kinds: set[type]) -> Any:
    """The text as the first of the kinds that can be read from it; a ValueError says what was expected."""
    is_bracketed = text[:1] + text[-1:] == "[]"
    if list in kinds and (is_bracketed or "," in text):
        parts = text[1:-1].split(",") if is_bracketed else text.split(",")
        return [parse_value(part.strip(), kinds - {list, types.NoneType}) for part in parts if part.strip()]
    for kind, (_, read) in KINDS.items():
        if kind in kinds:
            with suppress(KeyError, ValueError):
                return read(text)
    wanted = " or ".join(name for kind, (name, _) in KINDS.items() if kind in kinds and kind is not types.NoneType)
    raise ValueError(wanted + (", or several separated by commas" if list in kinds else ""))


def parse_docstring(function: Callable[..., Any]) -> tuple[str, list[tuple[list[str], str]]]:
    """The text before the Args section, and the names and the meaning of each entry of that section."""
    before, _, section = inspect.cleandoc(function.__doc__ or "").partition("\nArgs:\n")
    entries = re.findall(r"^(\w[\w, ]*): (.*(?:\n .*)*)", textwrap.dedent(section), flags=re.MULTILINE)
    return before.strip(), [(names.split(", "), " ".join(text.split())) for names, text in entries]


def print_table(rows: Iterable[Sequence[str]], header: Sequence[str] = ("", ""), left: Sequence[str] = ("",)) -> None:
    """Print rows under a header, if it has text, right-aligned except for the columns named in `left`.

    In a file or a pipe the table is 120 columns wide.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", show_header=any(header))
    for name in header:
        table.add_column(name, justify="left" if name in left else "right")
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 120, markup=False).print(table)
