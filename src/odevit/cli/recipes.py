"""odevit train, odevit distill: key=value ... -> a recipe, through Hydra -> a run."""

from __future__ import annotations

import ast
import inspect
import shlex
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from odevit.cli.parser import Command, described, print_table
from odevit.core.configuration_odevit import OdeViTConfig
from odevit.distill.distill_task import comparison, distill_recipe
from odevit.distill.distillation import DistillRecipe, compose_distillation
from odevit.distill.pretrained import train_pretrained
from odevit.errors import ConfigError, unknown_name
from odevit.train.auto_config import auto_configure
from odevit.train.classifier import train_recipe
from odevit.train.compose import CONFIG_NAME, compose_recipe, groups_of, options, word
from odevit.train.multirun import sweep
from odevit.train.recipe import Recipe
from odevit.train.task import Process

R = TypeVar("R", bound=Recipe)


def train(overrides: Sequence[str] = (), **settings: Any) -> Path:
    """Train a model, from scratch or with `teacher=` a pretrained ViT, and give back its folder.

    With data=FOLDER, whatever is not given is chosen to suit the images and the device, and printed.
    On the command line, --multirun seed=0,1,2 trains one model per combination, through Hydra and its launchers.

    Args:
        overrides: words as on the command line: `["experiment=fast/cifar10", "train.epochs=10"]`.
        settings: the same as keywords: `train(experiment="digits", seed=1, **{"train.epochs": 10})`.
    """
    words = to_overrides(overrides, settings)
    recipe, command = _chosen(words, compose_recipe, "train"), shlex.join(["odevit", "train", *words])
    return train_pretrained(recipe, command) if recipe.teacher else train_recipe(recipe, command)


def distill(overrides: Sequence[str] = (), **settings: Any) -> Path:
    """Distil a teacher into a student without labels and give back the student's folder.

    Args:
        overrides: words as on the command line: `["teacher=FOLDER", "data=FOLDER"]`.
        settings: the same as keywords: `distill(teacher="facebook/dino-vitb16", data="FOLDER")`.
    """
    from odevit.report.student_page import write_report  # matplotlib is slow to import

    words = to_overrides(overrides, settings)
    command = shlex.join(["odevit", "distill", *words])
    return distill_recipe(_chosen(words, compose_distillation, "distill"), command=command, then=write_report)


def _chosen(words: Sequence[str], compose: Callable[[Sequence[str]], R], verb: str) -> R:
    """The recipe of the words and of what suits data and device; what was chosen is printed, by one process."""
    recipe, _, said = auto_configure(words, compose, verb)
    recipe.check()
    if said and Process.here(recipe.device).is_main:
        print(*said, sep="\n", flush=True)
    return recipe


def to_overrides(overrides: Sequence[str], settings: Mapping[str, Any]) -> list[str]:
    """The words, and the settings as words: `seed=1` for {"seed": 1}."""
    return [*overrides, *(f"{key}={word(value)}" for key, value in settings.items())]


@dataclass(frozen=True)
class RecipeVerb(Command):
    """A verb whose keys are those of a recipe; the words go to Hydra as they are.

    Args:
        recipe: the dataclass that Hydra fills.
        root: the file that its defaults are in.
        compose: words to a recipe.
        sweep: what --multirun does with the words, if anything.
        given: words with which keys have other defaults, which the help then lists as well.
    """

    recipe: type[Recipe]
    root: str
    compose: Callable[[Sequence[str]], Recipe]
    sweep: Callable[[Sequence[str]], None] | None = None
    given: tuple[str, ...] = ()

    def run(self, words: Sequence[str]) -> None:
        groups = [word.removesuffix("=?") for word in words if word.endswith("=?")]
        known = groups_of(self.root)
        if unknown := [group for group in groups if group not in known]:
            raise ConfigError("the command line", [unknown_name("group", group, known) for group in unknown])
        if groups:
            for group in groups:
                print_table(sorted(options(group).items()))
        elif self.sweep and {"-m", "--multirun"} & {*words}:
            self.sweep(words)
        else:
            self.show(self.function(list(words)))

    def page(self) -> dict[str, Any]:
        """The help: usage, the files of every group, every key with its value in the default recipe, and examples."""
        notes, default = field_docs(self.recipe), self.compose(())
        keys, nested = [], []
        for name, value in vars(default).items():
            if is_dataclass(value):
                meaning = notes.get(name) or described(type(value))[0]
                inner = flat(value)
                if name == "model":
                    inner |= vars(OdeViTConfig(**default.model_settings()))
                below = [f"{field}={_shown(inner[field])}" for field in flat(value)]
                nested.append([f"{name}.KEY=", " ".join([meaning, "KEY:", *below])])
            else:
                keys.append([f"{name}={_shown(value)}", notes.get(name, "")])
        groups = [[f"{group}=", ", ".join(sorted(options(group)))] for group in groups_of(self.root)]
        return {
            "usage": f"odevit {self.name} [key=value ...]",
            "about": described(self.function)[0],
            "tables": [
                [
                    "Groups, each a choice of files that GROUP=? explains (data= also takes a folder or a hub id):",
                    groups,
                ],
                [f"Keys, as odevit {self.name} has them without any:", keys],
                ["", nested],
                *([[f"With {' '.join(self.given)}:", [self._otherwise(default)]]] if self.given else []),
            ],
            "examples": [*self.examples],
        }

    def _otherwise(self, default: Recipe) -> list[str]:
        """Which keys have other values in the recipe of the `given` words, and which."""
        own, other = flat(default), flat(self.compose(self.given))
        said = {word.partition("=")[0] for word in self.given} | {"name", "data.source"}
        changed = {key: value for key, value in other.items() if value != own[key] and key not in said}
        if "phases" in changed:
            changed["phases"] = "default"  # the file of that name, which phases=? explains
        return ["otherwise", " ".join(f"{key}={_shown(value)}" for key, value in changed.items())]


def flat(values: Any) -> dict[str, Any]:
    """The fields of a dataclass, those of a dataclass inside by dotted names."""
    return {
        f"{field.name}.{key}" if key else field.name: value
        for field in fields(values)
        for inner in [getattr(values, field.name)]
        for key, value in (flat(inner) if is_dataclass(inner) else {"": inner}).items()
    }


def _shown(value: Any) -> str:
    return "" if value in (None, "", []) else word(value)


def field_docs(recipe: type[Any]) -> dict[str, str]:
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
    shares = {"top1": ".2%", "agreement": ".2%"}
    formats = {"model": "", "params": ",", "labels": ",", "nfe": "", "milliseconds": ".3f", **shares, "images": ","}
    rows = [
        ["" if row[key] is None else format(row[key], style) for key, style in formats.items()]
        for row in comparison(folder)
    ]
    print_table(rows, ("", "parameters", "labels", "NFE", "ms/image", "top-1", "agreement", "images"))


TRAIN = RecipeVerb(
    "train",
    train,
    lambda folder: None,
    ("odevit train data=FOLDER train.epochs=20 out=runs/mine", "odevit train experiment=fast/cifar10 seed=1"),
    Recipe,
    CONFIG_NAME,
    compose_recipe,
    sweep,
)
DISTILL = RecipeVerb(
    "distill",
    distill,
    _show_comparison,
    (
        "odevit distill teacher=FOLDER data=FOLDER knots=4",
        "odevit distill experiment=distill/digits student.steps=12 seed=1",
    ),
    DistillRecipe,
    "distill",
    compose_distillation,
    given=("teacher=FOLDER", "data=FOLDER"),
)
