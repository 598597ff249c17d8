"""What a recipe or a finished run learns from, as batches: read, split, augmented, on the device."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import yaml

from odevit.data import Batches, DataSet, load_data, make_batches
from odevit.errors import ConfigError
from odevit.train.recipe import Recipe

EVALUATION_BATCH = 512


def choose_device(name: str) -> torch.device:
    """The device by name; `auto` is CUDA where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def read_data(recipe: Recipe, image_size: int) -> DataSet:
    """The data set of a recipe, at the model's image size unless the recipe names another."""
    options = {key: value for key, value in vars(recipe.data).items() if key not in ("source", "augmentation")}
    return load_data(recipe.data.source, **{**options, "image_size": recipe.data.image_size or image_size})


def label_names(data: DataSet) -> dict[str, dict[Any, Any]]:
    """The classes as the configurations of Hugging Face take them."""
    names = dict(enumerate(data.classes))
    return {"id2label": names, "label2id": {name: number for number, name in names.items()}}


def data_of(run: str | os.PathLike[str], data: str | None, image_size: int, cache: str | None = None) -> DataSet:
    """The data that a run was trained on, read and split in the same way, or the `data` given by name, folder or id.

    Decoded images are kept in the folder `cache`, for the next time.
    """
    recipe = Path(run) / "recipe.yaml"
    settings: dict[str, Any] = yaml.safe_load(recipe.read_text())["data"] if recipe.exists() else {}
    source = data or settings.get("source")
    if source is None:
        raise ConfigError("evaluate", [f"{run} has no recipe.yaml that names its data; pass data=FOLDER"])
    # Other data has the same split as in training, but columns of its own.
    columns = ["image_column", "label_column"] if source == settings.get("source") else []
    options = {key: settings[key] for key in ("validation", "split_seed", *columns) if key in settings}
    return load_data(source, image_size=image_size, cache=cache, **options)


def evaluation_batches(
    data: DataSet, split: str, size: int = EVALUATION_BATCH, limit: int | None = None, **where: Any
) -> Batches:
    """Every image of a split once, without augmentation; only the first `limit` of them, if given."""
    images = {"train": data.train, "validation": data.validation, "test": data.test}[split]
    if limit is not None and limit < len(images):
        images = images.subset(torch.arange(limit))
    options = {"mean": data.mean, "std": data.std, "num_classes": data.num_classes, **where}
    return make_batches(images, size, **options)
