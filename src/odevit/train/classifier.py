"""recipe -> folder: a model is trained from scratch, or from given weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import set_seed

from odevit.data import DataSet
from odevit.model import OdeViTConfig, OdeViTForImageClassification
from odevit.train.card import PIPELINE, Card
from odevit.train.evaluate import Score
from odevit.train.life import run
from odevit.train.recipe import Recipe
from odevit.train.splits import EVALUATION_BATCH, read_data
from odevit.train.task import Task


def train_recipe(recipe: Recipe, command: str = "") -> Path:
    """Train what the recipe describes and give back its folder; see `Recipe` for what can be said."""
    return run(ClassifierTask(recipe), command)


class ClassifierTask(Task[Recipe]):
    """A Vision Transformer of any depth, trained on labels."""

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

    def card(self, record: dict[str, Any], score: Score) -> Card:
        model, device, size = self.network, record["device"], self.network.config.image_size
        about, code = f"A Vision Transformer: {model.depth.describe()}.", PIPELINE
        if model.depth.has_trajectory:
            about = f"A Vision Transformer of continuous depth, {model.depth.describe()}, integrated by {model.way}."
            code += '\n\n# The same weights in another way: model(pixel_values, solver="rk4", steps=24)'
        accuracy = f"top-1 {score.top1:.2%}, top-3 {score.top3:.2%}, top-5 {score.top5:.2%}"
        batch, validation = min(EVALUATION_BATCH, score.images), record["seeds"][-1]["validation"]
        return Card(
            about=about,
            rows=[
                ("", ""),
                ("data", f"{record['data']}, {self.data.num_classes} classes, {size} px"),
                ("parameters", f"{record['params']:,}"),
                ("evaluations (NFE)", f"{score.nfe}"),
                ("time per image", f"{score.milliseconds:.3f} ms in batches of {batch}, on {device}"),
                ("test accuracy", f"{accuracy} (seed {self.recipe.seed}, one run)"),
                ("validation accuracy", f"{validation:.2%}; the model was selected on it"),
                ("training", f"{record['epochs']} epochs, {record['seconds']:.0f} s on {device}"),
            ],
            limits=[
                f"It makes {score.nfe} evaluations: sharing a field saves parameters, not operations.",
                f"It was trained on {record['data']} only, at {size} px, and does not notice images of another kind.",
            ],
            code=code,
        )


def make_model(recipe: Recipe, settings: dict[str, Any], data: DataSet) -> OdeViTForImageClassification:
    """A new model with the data's classes and pixel statistics, or the one to start from."""
    names = dict(enumerate(data.classes))
    labels = {"id2label": names, "label2id": {name: number for number, name in names.items()}}
    pixels = {"image_mean": list(data.mean), "image_std": list(data.std), "num_channels": data.channels}
    if recipe.init_from is None:
        settings = {key: value for key, value in settings.items() if key != "num_labels"}
        model = OdeViTForImageClassification(OdeViTConfig(**{**settings, **pixels, **labels}))
    else:
        model = OdeViTForImageClassification.from_pretrained(recipe.init_from, dtype=torch.float32)
        if model.config.num_labels != len(names):
            raise ValueError(
                f"the data has {len(names)} classes, the head of {recipe.init_from} has {model.config.num_labels}; "
                "start from an encoder (save model.odevit to a folder of its own and pass that), which gets a new head"
            )
        model.config.update({**pixels, **labels})
    if recipe.train.checkpointing:
        model.gradient_checkpointing_enable()
    return model
