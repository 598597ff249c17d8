"""recipe -> folder: a model is trained from scratch, or from given weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import set_seed

from odevit.data import DataSet
from odevit.model import OdeViTConfig, OdeViTForImageClassification
from odevit.train.life import run
from odevit.train.recipe import Recipe
from odevit.train.splits import label_names, read_data
from odevit.train.task import Task


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
        self.data = read_data(recipe, OdeViTConfig(**settings).image_size)
        set_seed(recipe.seed)
        self.network = make_model(recipe, settings, self.data)
        self.make_batches(self.data)
        if self.network.depth.has_trajectory:
            self.sampler = self.make_sampler(self.network.way)


def make_model(recipe: Recipe, settings: dict[str, Any], data: DataSet) -> OdeViTForImageClassification:
    """A new model with the data's classes and pixel statistics, or the one to start from."""
    known = {"image_mean": list(data.mean), "image_std": list(data.std), "num_channels": data.channels}
    known |= label_names(data)
    if recipe.init_from is None:
        settings = {key: value for key, value in settings.items() if key != "num_labels"}
        model = OdeViTForImageClassification(OdeViTConfig(**{**settings, **known}))
    else:
        model = OdeViTForImageClassification.from_pretrained(recipe.init_from, dtype=torch.float32)
        head = model.config.num_labels
        if head != data.num_classes:
            raise ValueError(
                f"the data has {data.num_classes} classes, the head of {recipe.init_from} has {head}; "
                "start from an encoder (save model.odevit to a folder of its own and pass that), which gets a new head"
            )
        model.config.update(known)
    if recipe.train.checkpointing:
        model.gradient_checkpointing_enable()
    return model
