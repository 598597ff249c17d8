"""data, budget, length and seeds x systems -> runs: what is the same for all, and what each system changes."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

from odevit.core.configuration import WIDEST
from odevit.core.configuration_odevit import OdeViTConfig
from odevit.core.modeling_odevit import OdeViTForImageClassification
from odevit.data.images import DataSet
from odevit.errors import ConfigError
from odevit.train.auto_config import auto_configure
from odevit.train.classifier import settings_for
from odevit.train.compose import DEPTH_OPTIONS, compose_recipe, expand_depth, options
from odevit.train.recipe import Recipe
from odevit.train.recipe_keys import word
from odevit.train.splits import read_data

TOLERANCE = 0.02
"""A model may have this fraction more or fewer parameters than the budget."""
CHANNELS, WIDE = 8, 64
"""From a width of 64 on, widths are multiples of 8, which matrix units read at once."""


def count_parameters(settings: Mapping[str, Any]) -> int:
    """Parameters of a model with these settings; no memory is allocated for them."""
    with torch.device("meta"):
        return OdeViTForImageClassification(OdeViTConfig(**settings)).parameter_count


def fit_to_budget(settings: Mapping[str, Any], budget: int) -> dict[str, Any]:
    """argmin over (width, MLP ratio) of |parameters - budget|; {} if the model is within `TOLERANCE` already.

    The width is chosen first, since parameters grow with its square. The hidden units of the MLP, which all cost the
    same, then take up the rest.
    """
    if is_near(count_parameters(settings), budget):
        return {}
    config = OdeViTConfig(**settings)
    unit, ratio = int(config.num_attention_heads or 1) * (4 if config.rope_theta else 1), float(config.mlp_ratio or 1)

    @cache
    def count(width: int, mlp_ratio: float = ratio) -> int:
        return count_parameters({**settings, "hidden_size": width, "mlp_ratio": mlp_ratio})

    def nearest_width(unit: int) -> int:
        return unit * nearest(lambda units: count(unit * units), budget, -(-2 // unit), WIDEST // unit)

    width = nearest_width(unit)
    if width >= WIDE:
        width = nearest_width(math.lcm(unit, CHANNELS))
    usual = max(1, round(width * ratio))
    per_unit = count(width, (usual + 1) / width) - count(width, usual / width)
    hidden = usual if per_unit <= 0 else max(1, usual + round((budget - count(width, usual / width)) / per_unit))
    rounded = CHANNELS * max(1, round(hidden / CHANNELS))
    if hidden >= WIDE and is_near(count(width, rounded / width), budget):
        hidden = rounded
    return {"hidden_size": width, "mlp_ratio": round(hidden / width, 6)}


def is_near(parameters: int, budget: int) -> bool:
    return abs(parameters - budget) <= TOLERANCE * budget


def nearest(increasing: Callable[[int], int], goal: int, minimum: int, maximum: int) -> int:
    """The n in [minimum, maximum] whose value of an increasing function is nearest to the goal."""
    upper = minimum
    while upper < maximum and increasing(upper) < goal:  # doubling first: large n take long
        upper = min(2 * upper, maximum)
    above = bisect_left(range(upper + 1), goal, lo=minimum, hi=upper, key=increasing)
    return min({max(minimum, above - 1), above}, key=lambda n: abs(increasing(n) - goal))


@dataclass(frozen=True)
class PlannedRun:
    """One system with one seed.

    Args:
        words: of `odevit train`, which trains the same model in the same folder.
        images: how many test images everything but accuracy is measured on.
    """

    system: str
    seed: int
    words: tuple[str, ...]
    images: int

    def recipe(self) -> Recipe:
        return compose_recipe(self.words)


@dataclass(frozen=True)
class Settings:
    """What all systems have in common.

    Args:
        data: a name, folder or hub id.
        words: overrides of the command line, for every recipe.
        parameters: the budget; None takes the size of the recipe's own model.
        length: {} as in the recipe, or one of `updates`, `epochs` and `seconds`.
        images: how many test images everything but accuracy is measured on.
        device: where all are trained.
    """

    data: str
    words: tuple[str, ...] = ()
    parameters: int | None = None
    length: dict[str, float] = field(default_factory=dict)
    images: int = 512
    device: str = "auto"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Plan:
    """The runs of a comparison. `changes` has what each system changes to meet the budget, `failures` why it cannot.

    Args:
        settings: what all systems have in common.
        systems, seeds: duplicates count once.
        out: the folder; each run has a folder of its own in it.
    """

    def __init__(self, settings: Settings, systems: Sequence[str], seeds: Sequence[int], out: Path) -> None:
        self.settings, self.out = settings, out
        self.systems, self.seeds = list(dict.fromkeys(systems)), sorted({*seeds})
        length = [f"train.{key}={word(value)}" for key, value in settings.length.items()]
        given = expand_depth([f"data={settings.data}", *settings.words, *length, f"device={settings.device}"])
        # Options of a depth only exist for the systems that have that depth.
        base = auto_configure([word for word in given if not word.startswith(f"{DEPTH_OPTIONS}.")], Recipe)
        base.recipe.check()
        self.common, self.said = [*base.overrides, *given], base.messages
        self.data: DataSet = read_data(base.recipe, OdeViTConfig(**base.recipe.model_settings()).image_size)
        self.budget = settings.parameters or count_parameters(settings_for(base.recipe.model_settings(), self.data))
        self.changes: dict[str, dict[str, Any]] = {}
        self.failures: dict[str, str] = {}
        for system in self.systems:
            try:
                self.changes[system] = self._fit(system)
            except ValueError as error:
                self.failures[system] = one_line(error)

    def _fit(self, system: str) -> dict[str, Any]:
        recipe = compose_recipe([*self.common, f"system={system}"])
        recipe.check()
        settings = settings_for(recipe.model_settings(), self.data)
        changes = fit_to_budget(settings, self.budget)
        count = count_parameters({**settings, **changes})
        if not is_near(count, self.budget):
            raise ValueError(
                f"{self.budget:,} parameters cannot be met: the nearest {system} has {count:,}, expected one within "
                f"{TOLERANCE:.0%}; type parameters={count}, or leave {system} out"
            )
        return changes

    def runs(self) -> list[PlannedRun]:
        """Every system with the first seed, then with the second: an interrupted comparison has all systems."""
        return [self.run(system, seed) for seed in self.seeds for system in self.changes]

    def run(self, system: str, seed: int) -> PlannedRun:
        changes = [f"model.{key}={word(value)}" for key, value in self.changes[system].items()]
        folder = self.out / system / f"seed-{seed}"
        words = (*self.common, f"system={system}", *changes, f"name={system}", f"seed={seed}", f"out={folder}")
        return PlannedRun(system, seed, words, min(self.settings.images, len(self.data.test)))


def all_systems() -> dict[str, str]:
    """Every system by name, with its description."""
    return {name: about for name, about in sorted(options("system").items()) if name != "none"}


def one_line(error: BaseException) -> str:
    """The message of an error on one line."""
    message = "; ".join(error.problems) if isinstance(error, ConfigError) else " ".join(str(error).split())
    return (message or type(error).__name__)[:500]
