"""recipe -> folder: a model is trained from scratch, or from given weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import set_seed

from odevit.data import DataSet, numbered_as
from odevit.model import OdeViTConfig, OdeViTForImageClassification, OdeViTModel
from odevit.model.soundness import reading
from odevit.train.life import run
from odevit.train.recipe import Recipe
from odevit.train.splits import label_names, read_data
from odevit.train.task import Task

NEW_HEAD = "start from an encoder (save model.odevit to a folder of its own and pass that), which gets a new head"


def train_recipe(recipe: Recipe, command: str = "") -> Path:
    """Train what the recipe describes and give back its folder; see `Recipe` for what can be said."""
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
            with reading(recipe.init_from):
                size = OdeViTConfig.from_pretrained(recipe.init_from).image_size
            given = recipe.model.image_size  # type: ignore[attr-defined]
            if given not in (None, size):
                raise ValueError(
                    f"model.image_size={given}, but init_from={recipe.init_from} takes images of {size}; leave it out, "
                    f"or set model.image_size={size}"
                )
        self.data = read_data(recipe, size)
        set_seed(recipe.seed)
        self.network = make_model(recipe, settings, self.data)
        if recipe.init_from is not None:
            self.data = numbered_as(self.data, self.network.classes, f"the head of {recipe.init_from}", NEW_HEAD)
            self.network.config.update(label_names(self.data))
        self.make_batches(self.data)
        if self.network.depth.has_trajectory:
            self.sampler = self.make_sampler(self.network.way)


def settings_for(settings: dict[str, Any], data: DataSet) -> dict[str, Any]:
    """The settings of a model, with the classes and the pixels of the data."""
    kept = {key: value for key, value in settings.items() if key != "num_labels"}
    return {**kept, **_pixels_of(data), **label_names(data)}


def _pixels_of(data: DataSet) -> dict[str, Any]:
    return {"image_mean": list(data.mean), "image_std": list(data.std), "num_channels": data.channels}


def make_model(recipe: Recipe, settings: dict[str, Any], data: DataSet) -> OdeViTForImageClassification:
    """A new model with the data's classes and pixel statistics, or the one to start from."""
    if recipe.init_from is None:
        model = OdeViTForImageClassification(OdeViTConfig(**settings_for(settings, data)))
    else:
        with reading(recipe.init_from):
            headless = OdeViTConfig.from_pretrained(recipe.init_from).architectures == [OdeViTModel.__name__]
        head = label_names(data) if headless else {}
        model = OdeViTForImageClassification.from_pretrained(recipe.init_from, dtype=torch.float32, **head)
        model.config.update(_pixels_of(data))
    if recipe.train.checkpointing:
        model.gradient_checkpointing_enable()
    return model
