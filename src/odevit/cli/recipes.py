"""odevit train, odevit distill: key=value ... -> a recipe, through Hydra -> a run."""

from __future__ import annotations

import ast
import inspect
import shlex
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar, cast

import hydra
from omegaconf import DictConfig, OmegaConf

from odevit.cli.parser import Command, parse_docstring, print_table
from odevit.core.configuration_odevit import OdeViTConfig
from odevit.distill.distill_task import comparison, distill_recipe
from odevit.distill.distillation import DistillRecipe
from odevit.distill.pretrained import train_pretrained
from odevit.errors import ConfigError, unknown_name
from odevit.surgery.configuration_student import OdeStudentConfig
from odevit.train.auto_config import auto_configure
from odevit.train.classifier import train_recipe
from odevit.train.compose import (
    CONFIG_MODULE,
    compose_as,
    expand_data,
    expand_system,
    groups_of,
    is_sweep,
    options,
    store_schema,
)
from odevit.train.recipe import Recipe
from odevit.train.recipe_keys import word
from odevit.train.task import Process

R = TypeVar("R", bound=Recipe)


def train(overrides: Sequence[str] = (), **settings: Any) -> Path:
    """Train a model from scratch, or fine-tune a pretrained ViT with `teacher=`. Returns the folder of the run.

    With data=FOLDER, options that you leave out are chosen to suit the images and the device, and printed.
    On the command line, --multirun seed=0,1,2 trains one model per combination, with Hydra and its launchers.

    Args:
        overrides: words as on the command line: `["experiment=fast/cifar10", "train.epochs=10"]`.
        settings: the same as keywords: `train(experiment="digits", seed=1, **{"train.epochs": 10})`.
    """
    words = to_overrides(overrides, settings)
    recipe, command = _auto_recipe(words, Recipe), shlex.join(["odevit", "train", *words])
    return train_pretrained(recipe, command) if recipe.teacher else train_recipe(recipe, command)


def distill(overrides: Sequence[str] = (), **settings: Any) -> Path:
    """Distil a pretrained ViT into a student without labels. Returns the folder of the student.

    Args:
        overrides: words as on the command line: `["teacher=FOLDER", "data=FOLDER"]`.
        settings: the same as keywords: `distill(teacher="facebook/dino-vitb16", data="FOLDER")`.
    """
    from odevit.report.student_page import write_report  # matplotlib is slow to import

    words = to_overrides(overrides, settings)
    command = shlex.join(["odevit", "distill", *words])
    return distill_recipe(_auto_recipe(words, DistillRecipe), command=command, then=write_report)


def sweep(overrides: Sequence[str]) -> None:
    """`odevit train --multirun seed=0,1,2 hydra/launcher=...`: one run per combination."""
    store_schema(Recipe)
    command = "odevit train " + " ".join(overrides)

    @hydra.main(version_base="1.3", config_path=f"pkg://{CONFIG_MODULE}", config_name=Recipe.root)
    def one(config: DictConfig) -> None:
        train_recipe(cast(Recipe, OmegaConf.to_object(config)), command=command)

    overrides = expand_data(expand_system(overrides))
    keyed = [override for override in overrides if "=" in override and not override.startswith("-")]
    swept = [override for override in keyed if is_sweep(override)]
    if systems := [override for override in swept if override.startswith("system=")]:
        raise ConfigError(
            "the command line", [f"{systems[0]} names several systems; odevit compare systems=a,b trains each of them"]
        )
    chosen = auto_configure([override for override in keyed if override not in swept], Recipe, swept)
    print(*chosen.messages, sep="\n", flush=True)
    # Hydra reads the command line itself, without our verb; overrides stand together there.
    place = overrides.index(keyed[0]) if keyed else len(overrides)
    original = sys.argv
    sys.argv = [original[0], *overrides[:place], *chosen.overrides, *overrides[place:]]
    try:
        one()
    finally:
        sys.argv = original


def _auto_recipe(words: Sequence[str], kind: type[R]) -> R:
    """The recipe of the words, completed to suit data and device; the main process prints what was chosen."""
    recipe, _, messages = auto_configure(words, kind)
    recipe.check()
    if messages and Process.here(recipe.device).is_main:
        print(*messages, sep="\n", flush=True)
    return recipe


def to_overrides(overrides: Sequence[str], settings: Mapping[str, Any]) -> list[str]:
    """The words, and the settings as words: `seed=1` for {"seed": 1}."""
    return [*overrides, *(f"{key}={word(value)}" for key, value in settings.items())]


@dataclass(frozen=True)
class RecipeCommand(Command):
    """A command whose keys are those of a recipe; the words go to Hydra as they are.

    Args:
        recipe: the dataclass that Hydra fills.
        main_keys: the keys that --help lists; --help-all lists all.
        sweep: what --multirun does with the words, if anything.
        given: words that change other defaults; the help lists those changes.
    """

    recipe: type[Recipe]
    main_keys: Sequence[str]
    sweep: Callable[[Sequence[str]], None] | None = None
    given: tuple[str, ...] = ()

    def run(self, words: Sequence[str]) -> int:
        groups = [word.removesuffix("=?") for word in words if word.endswith("=?")]
        known = groups_of(self.recipe.root)
        if unknown := [group for group in groups if group not in known]:
            raise ConfigError("the command line", [unknown_name("group", group, known) for group in unknown])
        if groups:
            for group in groups:
                print_table(sorted(options(group).items()))
        elif self.sweep and {"-m", "--multirun"} & {*words}:
            self.sweep(words)
        else:
            self.show(self.function(list(words)))
        return 0

    def help(self) -> dict[str, Any]:
        """Usage, description and examples; the files of every group and the main keys; and, in `more`, all others."""
        default, unused = compose_as(self.recipe), self.recipe.unused_overrides({})
        meanings = find_meanings(self.recipe)
        values = {key: value for key, value in flatten(default).items() if key not in unused}
        model = vars(OdeViTConfig(**default.model_settings()))
        values |= {key: model[key[6:]] for key in values if key[6:] in model and key.startswith("model.")}
        rows = {key: (f"{key}={_as_text(value)}", meanings.get(key, "")) for key, value in values.items()}
        others = {key: row for key, row in rows.items() if key not in self.main_keys}
        groups = {f"{group}=": ", ".join(sorted(options(group))) for group in groups_of(self.recipe.root)}
        teacher = [key for key in others if key.startswith(TEACHER_TRAIN)]
        more = {"All other options": dict(row for key, row in others.items() if key not in teacher)}
        if teacher:
            names = ", ".join(key.removeprefix(TEACHER_TRAIN) for key in teacher)
            more["All other options"][f"{TEACHER_TRAIN}KEY="] = f"{meanings[TEACHER_TRAIN[:-1]]} KEY: {names}."
        if self.given:
            more[f"Other defaults with {' '.join(self.given)}"] = self._other_defaults(values)
        return {
            "usage": f"odevit {self.name} [key=value ...]",
            "about": parse_docstring(self.function)[0],
            "tables": {
                "Choices; GROUP=? explains them (data= also takes a folder or a hub id)": groups,
                "Options and defaults": dict(rows[key] for key in self.main_keys),
            },
            "more": more,
            "examples": [*self.examples],
        }

    def _other_defaults(self, values: Mapping[str, Any]) -> dict[str, str]:
        """The keys that have other values in the recipe of the `given` words."""
        given = {word.partition("=")[0] for word in self.given} | {"name", "data.source"}
        changed = {
            k: v
            for k, v in flatten(compose_as(self.recipe, self.given)).items()
            if k in values and v != values[k] and k not in given
        }
        if "phases" in changed:
            changed["phases"] = "default"  # the file of that name, which phases=? explains
        return {f"{key}={_as_text(value)}": "" for key, value in changed.items() if not key.startswith("model.")}


def flatten(values: Any) -> dict[str, Any]:
    """The fields of a dataclass; those of a nested dataclass by dotted names."""
    return {
        f"{field.name}.{key}" if key else field.name: value
        for field in fields(values)
        for inner in [getattr(values, field.name)]
        for key, value in (flatten(inner) if is_dataclass(inner) else {"": inner}).items()
    }


def _as_text(value: Any) -> str:
    return "" if value in (None, "", [], {}) else word(value)


CONFIGS: dict[str, list[type[Any]]] = {"model.": [OdeViTConfig], "student.": [OdeViTConfig, OdeStudentConfig]}
"""The classes whose docstrings explain the keys that begin so."""


def find_meanings(recipe: type[Any], prefix: str = "") -> dict[str, str]:
    """Key -> the string below a dataclass field, or the entry of a configuration class's Args section."""
    meanings: dict[str, str] = {}
    for config in CONFIGS.get(prefix, []):
        for base in reversed(inspect.getmro(config)[:-1]):
            for names, text in parse_docstring(base)[1]:
                meanings |= {f"{prefix}{name}": text for name in names}
    for kind in reversed(recipe.__mro__[:-1]):
        with suppress(OSError, TypeError):  # a class that was made by a function has no source
            source = textwrap.dedent(inspect.getsource(kind))
            for pair in pairwise(ast.walk(ast.parse(source))):  # the statements of a class come one after the other
                match pair:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                        meanings[f"{prefix}{name}"] = " ".join(text.split())
    for field in fields(recipe()):
        if is_dataclass(inner := getattr(recipe(), field.name)):
            meanings |= find_meanings(type(inner), f"{prefix}{field.name}.")
    return meanings


def print_students(folder: Path) -> None:
    """The table of teacher and student."""
    shares = {"top1": ".2%", "agreement": ".2%"}
    formats = {"model": "", "params": ",", "labels": ",", "nfe": "", "milliseconds": ".3f", **shares, "images": ","}
    rows = [
        ["" if row[key] is None else format(row[key], style) for key, style in formats.items()]
        for row in comparison(folder)
    ]
    print_table(rows, ("", "parameters", "labels", "NFE", "ms/image", "top-1", "agreement", "images"))


TEACHER_TRAIN = "teacher_train."
"""Keys that --help-all lists in one row: they mean what those of `train` mean."""
COMMON_KEYS = [
    *("name", "out", "seed", "device", "resume", "overwrite", "teacher", "data.validation"),
    *(f"train.{key}" for key in ("epochs", "batch_size", "learning_rate", "optimizer", "precision", "compile")),
]
TRAIN_KEYS = [
    *COMMON_KEYS,
    "head_only",
    *(f"model.{key}" for key in ("image_size", "hidden_size", "depth", "solver", "steps", "horizon", "knots")),
]
DISTILL_KEYS = [
    *COMMON_KEYS,
    *("unlabelled", "objective.logits", "objective.temperature", "phases"),
    *(f"student.{key}" for key in ("knots", "solver", "steps", "horizon")),
]
COMMANDS = {
    "train": RecipeCommand(
        "train",
        train,
        lambda folder: None,
        ("odevit train data=FOLDER train.epochs=20 out=runs/mine", "odevit train experiment=fast/cifar10 seed=1"),
        Recipe,
        TRAIN_KEYS,
        sweep,
    ),
    "distill": RecipeCommand(
        "distill",
        distill,
        print_students,
        (
            "odevit distill teacher=FOLDER data=FOLDER knots=4",
            "odevit distill experiment=distill/digits student.steps=12 seed=1",
        ),
        DistillRecipe,
        DISTILL_KEYS,
        given=("teacher=FOLDER", "data=FOLDER"),
    ),
}
