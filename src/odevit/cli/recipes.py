"""key=value ... -> a recipe, through Hydra: what `train` and `distill` have in common."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from odevit.cli.words import Verb, described, table
from odevit.errors import ConfigError, unknown_name
from odevit.train.compose import GROUPS, options
from odevit.train.recipe import Recipe


@dataclass(frozen=True)
class RecipeVerb(Verb):
    """A verb whose keys are those of a recipe; the words go to Hydra as they are.

    Args:
        recipe: the dataclass that Hydra fills.
        sweep: what --multirun does with the words, if anything.
    """

    recipe: type[Recipe]
    sweep: Callable[[Sequence[str]], None] | None = None

    def run(self, words: Sequence[str]) -> None:
        groups = [word.removesuffix("=?") for word in words if word.endswith("=?")]
        if unknown := [group for group in groups if group not in GROUPS]:
            raise ConfigError("the command line", [unknown_name("group", group, GROUPS) for group in unknown])
        if groups:
            print("\n".join(name for group in groups for name in sorted(options(group))))
        elif self.sweep and {"-m", "--multirun"} & {*words}:
            self.sweep(words)
        else:
            self.show(self.function(list(words)))

    def help(self) -> str:
        """Usage, the files of every group, every key at the top, and the names of the keys below."""
        groups = [(f"{group}=", ", ".join(sorted(options(group)))) for group in GROUPS]
        keys, nested, notes = [], [], notes_of(self.recipe)
        for name, default in vars(self.recipe()).items():
            if dataclasses.is_dataclass(default):
                below = " ".join(field.name for field in dataclasses.fields(default))
                meaning = notes.get(name) or described(type(default))[0]
                nested.append((f"{name}.KEY=", f"{meaning} KEY: {below}"))
            else:
                keys.append((f"{name}={'' if default in (None, []) else _word(default)}", notes.get(name, "")))
        parts = [f"odevit {self.name} [key=value ...]", "", described(self.function)[0], ""]
        parts += ["Groups, each a choice of yaml files (data= also takes a folder or a hub id):", *table(groups)]
        parts += ["Keys:", *table(keys), *table(nested), f"Example: {self.example}", ""]
        return "\n".join(parts)


def notes_of(recipe: type[Any]) -> dict[str, str]:
    """The string below each field of a dataclass, those that it inherits included."""
    notes: dict[str, str] = {}
    for kind in reversed(recipe.__mro__[:-1]):
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        assert isinstance(body, ast.ClassDef)
        for field, note in zip(body.body, body.body[1:], strict=False):
            match field, note:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    notes[name] = " ".join(text.split())
    return notes


def words_of(overrides: Sequence[str], settings: Mapping[str, Any]) -> list[str]:
    """The words, and the settings as words: `seed=1` for {"seed": 1}."""
    return [*overrides, *(f"{key}={_word(value)}" for key, value in settings.items())]


def _word(value: Any) -> str:
    """A value as Hydra reads it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_word, value)) + "]"
    return "null" if value is None else str(value)
