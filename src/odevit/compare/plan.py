"""data, budget, updates, seeds x systems -> entries: what is the same for all, and what each system changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from odevit.compare.budget import NEAR, fit_to_budget, near, parameters_of
from odevit.core.configuration_odevit import OdeViTConfig
from odevit.data.images import DataSet
from odevit.errors import ConfigError
from odevit.train.auto_config import auto_configure
from odevit.train.classifier import settings_for
from odevit.train.compose import DEPTH_OPTIONS, compose_recipe, expand_depth, options, word
from odevit.train.recipe import Recipe
from odevit.train.splits import read_data

OF_A_DEPTH = f"{DEPTH_OPTIONS}."
"""How words begin, in the keys of the model, that have no meaning before a system is named."""


@dataclass(frozen=True)
class Entry:
    """One system with one seed.

    Args:
        words: of `odevit train`, which trains the same model in the same folder.
        images: how many images of the test split are measured on.
    """

    system: str
    seed: int
    words: tuple[str, ...]
    images: int

    def recipe(self) -> Recipe:
        return compose_recipe(self.words)


@dataclass(frozen=True)
class Terms:
    """What all systems have in common; a comparison that goes on must have the same.

    Args:
        data: a name, folder or hub id.
        words: of the command line, for every recipe.
        parameters: how many each may have; None is as many as the recipe's own model.
        length: `updates`, `epochs` or `seconds`, or none of them for those of the recipe.
        images: how many images of the test split are measured on, accuracy apart.
        device: where all are trained.
    """

    data: str
    words: tuple[str, ...] = ()
    parameters: int | None = None
    length: dict[str, float] = field(default_factory=dict)
    images: int = 512
    device: str = "auto"

    def numbers(self) -> dict[str, Any]:
        return {**asdict(self), "words": expand_depth(self.words)}


class Plan:
    """The entries of a comparison: every system as large as the budget, or the reason why it cannot be.

    Args:
        terms: what they have in common.
        systems: by name; whatever is named twice counts once, as does a seed.
        seeds: of each.
        out: the folder in which every entry has one of its own.
    """

    def __init__(self, terms: Terms, systems: Sequence[str], seeds: Sequence[int], out: Path) -> None:
        self.terms, self.out = terms, out
        self.systems, self.seeds = list(dict.fromkeys(systems)), sorted({*seeds})
        length = [f"train.{key}={word(value)}" for key, value in terms.length.items()]
        given = expand_depth([f"data={terms.data}", *terms.words, *length, f"device={terms.device}"])
        # What is an option of some depth is for the systems that have it; the others refuse it by themselves.
        base = auto_configure([word for word in given if not word.startswith(OF_A_DEPTH)], compose_recipe)
        base.recipe.check()
        self.common, self.said = [*base.words, *given], base.said
        self.data: DataSet = read_data(base.recipe, OdeViTConfig(**base.recipe.model_settings()).image_size)
        self.budget = terms.parameters or parameters_of(settings_for(base.recipe.model_settings(), self.data))
        self.changes: dict[str, dict[str, Any]] = {}
        self.refused: dict[str, str] = {}
        for system in self.systems:
            try:
                self._fit(system)
            except ValueError as error:
                self.refused[system] = sentence(error)

    def _fit(self, system: str) -> None:
        recipe = compose_recipe([*self.common, f"system={system}"])
        recipe.check()
        settings = settings_for(recipe.model_settings(), self.data)
        changes = fit_to_budget(settings, self.budget)
        count = parameters_of({**settings, **changes})
        if not near(count, self.budget):
            raise ValueError(
                f"{self.budget:,} parameters cannot be met: the nearest {system} has {count:,}, expected one within "
                f"{NEAR:.0%}; type parameters={count}, or leave {system} out"
            )
        self.changes[system] = changes

    def entries(self) -> list[Entry]:
        """Every system with the first seed, then with the second: an interrupted comparison has all of them."""
        return [self.entry(system, seed) for seed in self.seeds for system in self.changes]

    def entry(self, system: str, seed: int) -> Entry:
        own = [f"model.{key}={word(value)}" for key, value in self.changes[system].items()]
        place = [f"name={system}", f"seed={seed}", f"out={self.out / system / f'seed-{seed}'}"]
        words = (*self.common, f"system={system}", *own, *place)
        return Entry(system, seed, words, min(self.terms.images, len(self.data.test)))


def all_systems() -> dict[str, str]:
    """Every system by name, with what it is in a sentence."""
    return {name: about for name, about in sorted(options("system").items()) if name != "none"}


def sentence(error: BaseException) -> str:
    """An error on one line."""
    said = "; ".join(error.problems) if isinstance(error, ConfigError) else " ".join(str(error).split())
    return f"{said or type(error).__name__}"[:500]
