"""recipe -> folder: train a classifier from scratch or from given weights."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import set_seed

from odevit.core.base import DEPTHS
from odevit.core.configuration_odevit import OdeViTConfig
from odevit.core.modeling_odevit import OdeViTForImageClassification, OdeViTModel
from odevit.data.class_names import align_classes
from odevit.data.images import DataSet
from odevit.errors import ConfigError
from odevit.hf.checks import loading_errors
from odevit.train.recipe import MODEL_FIELDS, Recipe
from odevit.train.runner import run
from odevit.train.splits import label_names, read_data
from odevit.train.task import Task

NEW_HEAD = "start from an encoder (save model.odevit to a folder of its own and pass that), which gets a new head"
CHANGEABLE = {"solver", "horizon", "tolerance", "grid"} | {name for name in MODEL_FIELDS if "drop" in name}
"""Fields that may differ from those of `init_from`; so may the steps of a model that follows a trajectory."""


def train_recipe(recipe: Recipe, command: str = "") -> Path:
    """Train what the recipe describes and return its folder."""
    return run(ClassifierTask(recipe), command)


class ClassifierTask(Task[Recipe]):
    """A Vision Transformer of any depth, trained on labels."""

    card: ClassVar[str] = "train/classifier.md.j2"

    network: OdeViTForImageClassification

    def build(self) -> None:
        recipe = self.recipe
        settings = recipe.model_settings()
        size = OdeViTConfig(**settings).image_size
        if recipe.init_from is not None:
            with loading_errors(recipe.init_from):
                begun = OdeViTConfig.from_pretrained(recipe.init_from)
            size, settings = begun.image_size, changed_settings(recipe, begun)
        self.data = read_data(recipe, size)
        set_seed(recipe.seed)
        self.network = make_model(recipe, settings, self.data)
        if recipe.init_from is not None:
            self.data = align_classes(self.data, self.network.classes, f"the head of {recipe.init_from}", NEW_HEAD)
            self.network.config.update(label_names(self.data))
        self._make_batches(self.data)
        if self.network.depth.has_trajectory:
            self.sampler = self._make_sampler(self.network.solver_config)


def changed_settings(recipe: Recipe, begun: OdeViTConfig) -> dict[str, Any]:
    """The fields in which a recipe differs from the model that it starts from, such as another solver or dropout.

    Raises:
        ConfigError: for a field that the weights depend on.
    """
    given = {name: value for name, value in asdict(recipe.model).items() if value is not None and name != "preset"}
    wanted = {name: None if value == "none" else value for name, value in given.items()}
    changed = {name: value for name, value in wanted.items() if value != getattr(begun, name)}
    free = CHANGEABLE | ({"steps"} if DEPTHS[begun.depth].has_trajectory else set())
    problems = []
    for name in sorted(changed.keys() - free):
        own = getattr(begun, name)
        problems.append(
            f"model.{name}={given[name]}, but its weights are those of a model with {own}; leave it out, or set "
            f"model.{name}={'none' if own is None else own}"
        )
    if problems:
        raise ConfigError(f"init_from={recipe.init_from}", problems)
    OdeViTConfig(**(begun.to_dict() | changed))  # raises if they do not fit together
    return changed


def settings_for(settings: dict[str, Any], data: DataSet) -> dict[str, Any]:
    """The settings of a model, with the classes and the pixels of the data."""
    kept = {key: value for key, value in settings.items() if key != "num_labels"}
    return {**kept, **_pixels_of(data), **label_names(data)}


def _pixels_of(data: DataSet) -> dict[str, Any]:
    return {"image_mean": list(data.mean), "image_std": list(data.std), "num_channels": data.channels}


def make_model(recipe: Recipe, settings: dict[str, Any], data: DataSet) -> OdeViTForImageClassification:
    """A new model with the data's classes and pixel statistics, or the one to start from with changed settings."""
    if recipe.init_from is None:
        model = OdeViTForImageClassification(OdeViTConfig(**settings_for(settings, data)))
    else:
        with loading_errors(recipe.init_from):
            headless = OdeViTConfig.from_pretrained(recipe.init_from).architectures == [OdeViTModel.__name__]
        anew = settings | (label_names(data) if headless else {})
        model = OdeViTForImageClassification.from_pretrained(recipe.init_from, dtype=torch.float32, **anew)
        model.config.update(_pixels_of(data))
    if recipe.train.checkpointing:
        model.gradient_checkpointing_enable()
    return model
