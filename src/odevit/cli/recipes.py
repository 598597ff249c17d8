"""odevit train, odevit distill: key=value ... -> a recipe, through Hydra -> a run."""

from __future__ import annotations

import ast
import inspect
import json
import shlex
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from odevit.cli.words import Verb, described, print_table
from odevit.distill.distill_task import comparison, distill_recipe
from odevit.distill.distillation import DistillRecipe, compose_distillation
from odevit.distill.head import train_head
from odevit.errors import ConfigError, unknown_name
from odevit.train.classifier import train_recipe
from odevit.train.compose import GROUPS, compose_recipe, options
from odevit.train.multirun import sweep
from odevit.train.recipe import Recipe


def train(overrides: Sequence[str] = (), **settings: Any) -> Path:
    """Train a model and give back its folder.

    On the command line, --multirun seed=0,1,2 trains one model per combination, through Hydra and its launchers.

    Args:
        overrides: words as on the command line: `["experiment=fast/cifar10", "train.epochs=10"]`.
        settings: the same as keywords: `train(experiment="digits", seed=1, **{"train.epochs": 10})`.
    """
    words = words_of(overrides, settings)
    recipe, command = compose_recipe(words), shlex.join(["odevit", "train", *words])
    if recipe.head_only:
        return train_head(recipe, command)
    if recipe.teacher:
        raise ValueError(
            "teacher= was given to train; pass head_only=true to give it a new head, or use odevit distill"
        )
    return train_recipe(recipe, command)


def distill(overrides: Sequence[str] = (), **settings: Any) -> Path:
    """Distil a teacher into a student without labels and give back the student's folder.

    Args:
        overrides: words as on the command line: `["teacher=FOLDER", "data=FOLDER"]`.
        settings: the same as keywords: `distill(teacher="facebook/dino-vitb16", data="FOLDER")`.
    """
    from odevit.report.student_page import write_report  # matplotlib is slow to import

    words = words_of(overrides, settings)
    command = shlex.join(["odevit", "distill", *words])
    return distill_recipe(compose_distillation(words), command=command, then=write_report)


def words_of(overrides: Sequence[str], settings: Mapping[str, Any]) -> list[str]:
    """The words, and the settings as words: `seed=1` for {"seed": 1}."""
    return [*overrides, *(f"{key}={_word(value)}" for key, value in settings.items())]


def _word(value: Any) -> str:
    """A value as Hydra reads it."""
    return json.dumps(value, default=str) if isinstance(value, bool | list | tuple | None) else str(value)


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

    def help(self) -> None:
        """Print usage, the files of every group, every key at the top, and the names of the keys below."""
        print(f"odevit {self.name} [key=value ...]\n\n{described(self.function)[0]}\n")
        print("Groups, each a choice of yaml files (data= also takes a folder or a hub id):")
        print_table((f"{group}=", ", ".join(sorted(options(group)))) for group in GROUPS)
        keys, nested, notes = [], [], notes_of(self.recipe)
        for name, default in vars(self.recipe()).items():
            if is_dataclass(default):
                meaning = notes.get(name) or described(type(default))[0]
                nested.append((f"{name}.KEY=", " ".join([meaning, "KEY:", *(field.name for field in fields(default))])))
            else:
                keys.append((f"{name}={'' if default in (None, []) else _word(default)}", notes.get(name, "")))
        print("\nKeys:")
        print_table([*keys, ("", ""), *nested])
        print(f"\nExample: {self.example}")


def notes_of(recipe: type[Any]) -> dict[str, str]:
    """The string below each field of a dataclass, those that it inherits included."""
    notes: dict[str, str] = {}
    for kind in reversed(recipe.__mro__[:-1]):
        source = textwrap.dedent(inspect.getsource(kind))
        for pair in pairwise(ast.walk(ast.parse(source))):  # the statements of a class come one after the other
            match pair:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    notes[name] = " ".join(text.split())
    return notes


def _show_comparison(folder: Path) -> None:
    formats = {"model": "", "params": ",", "nfe": "", "milliseconds": ".3f", "top1": ".2%", "agreement": ".2%"}
    rows = [
        ["" if row[key] is None else format(row[key], style) for key, style in formats.items()]
        for row in comparison(folder)
    ]
    print_table(rows, ("", "parameters", "NFE", "ms/image", "top-1", "agreement"))


TRAIN = RecipeVerb(
    "train", train, lambda folder: None, "odevit train experiment=fast/cifar10 train.epochs=10 seed=1", Recipe, sweep
)
DISTILL = RecipeVerb(
    "distill", distill, _show_comparison, "odevit distill teacher=FOLDER data=FOLDER student.steps=24", DistillRecipe
)
