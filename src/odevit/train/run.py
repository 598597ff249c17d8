"""recipe -> folder: a whole training run, from the data to the model card."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from transformers import set_seed

from odevit.data import DataSet
from odevit.model import OdeViTConfig, OdeViTForImageClassification
from odevit.train.assemble import Place, assemble, begin, carry_out, make_sampler
from odevit.train.finish import finish
from odevit.train.integration import OneWay
from odevit.train.recipe import Recipe
from odevit.train.record import device_name
from odevit.train.splits import evaluation_batches, read_data, training_batches
from odevit.train.trainer import OdeViTTrainer


def train_recipe(recipe: Recipe, command: str = "") -> Path:
    """Train what the recipe describes and give back its folder.

    The folder ends with weights, config, image processor, recipe, metrics, curves, record and model card; see
    `Recipe` for what can be said.
    """
    place, folder = begin(recipe), recipe.folder
    main, device = place.rank == 0, place.device
    config = OdeViTConfig(**recipe.model_settings())
    data = read_data(recipe, config.image_size)
    set_seed(recipe.seed)
    model = make_model(recipe, config, data)
    if main:
        print_summary(model, data, device)
    trainer = make_trainer(recipe, model, data, device)
    validation = carry_out(recipe, trainer, place)
    if main:
        finish(recipe, validation, data, device, command)
    trainer.accelerator.wait_for_everyone()
    return folder


def make_model(recipe: Recipe, config: OdeViTConfig, data: DataSet) -> OdeViTForImageClassification:
    """A new model with the data's classes and pixel statistics, or the one to start from."""
    names = dict(enumerate(data.classes))
    labels = {"id2label": names, "label2id": {name: number for number, name in names.items()}}
    pixels = {"image_mean": list(data.mean), "image_std": list(data.std), "num_channels": data.channels}
    settings = {**recipe.model_settings(), **pixels, **labels}
    settings.pop("num_labels", None)
    fresh = OdeViTConfig(**settings)
    if recipe.init_from is None:
        model = OdeViTForImageClassification(fresh)
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


def make_trainer(
    recipe: Recipe, model: OdeViTForImageClassification, data: DataSet, device: torch.device
) -> OdeViTTrainer:
    """The Trainer of a model on a data set."""
    t, place, config = recipe.train, Place.here(device), model.config
    batches = training_batches(data, place.share(t), recipe.data.augmentation, seed=recipe.seed, **place.options(t))
    validation = evaluation_batches(data, "validation", **place.options(t))
    sampler = make_sampler(recipe, config.steps, config.horizon, len(batches)) if config.depth == "ode" else OneWay()
    return assemble(recipe, model, batches, validation, sampler, place)


def print_summary(model: nn.Module, data: DataSet, device: torch.device) -> None:
    """One line about the size of things."""
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(
        f"{parameters:,} parameters; {len(data.train):,} images to train on, {len(data.validation):,} held out, "
        f"{len(data.test):,} to test on; {device_name(device)}",
        flush=True,
    )
