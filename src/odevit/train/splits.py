"""The data of a recipe or of a finished run, and batches to evaluate on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers.image_processing_utils import BaseImageProcessor

from odevit.core.image_model import ImageModel
from odevit.data.batches import Batches, make_batches
from odevit.data.class_names import align_classes
from odevit.data.images import DataSet
from odevit.data.loading import load_data
from odevit.errors import ConfigError, one_of, with_key_prefix
from odevit.hf.processor import statistics_of
from odevit.train.folder import RECIPE, read_recipe
from odevit.train.recipe import Recipe, device_problems
from odevit.train.recipe_keys import removed_problems

EVALUATION_BATCH = 512
WORKERS = max(2, min(8, (os.cpu_count() or 2) // 2))
"""Processes that decode images when the data is streamed."""
SPLIT = one_of("train", "validation", "test")


def resolve_device(name: str) -> torch.device:
    """The device by name; `auto` is CUDA where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    for problem in device_problems(name):
        raise ValueError(problem)
    return torch.device(name)


def read_data(recipe: Recipe, pixels: int | BaseImageProcessor, unlabelled: Sequence[str] = ()) -> DataSet:
    """The data set of a recipe with a model's image processor, or with ours at a size.

    The images of the folders `unlabelled` are added to the training split.
    """
    options = {key: value for key, value in vars(recipe.data).items() if key not in ("source", "augmentation")}
    seen: dict[str, Any] = {"image_size": pixels} if isinstance(pixels, int) else {"processor": pixels}
    with with_key_prefix("data", options):
        return load_data(recipe.data.source, cache=recipe.cache, **options, **seen, unlabelled=unlabelled)


def label_names(data: DataSet) -> dict[str, dict[Any, Any]]:
    """The classes for a configuration of Hugging Face."""
    names = dict(enumerate(data.classes))
    return {"id2label": names, "label2id": {name: number for number, name in names.items()}}


def load_run_data(
    run: str | os.PathLike[str], data: str | None, model: ImageModel, cache: str | None = None
) -> DataSet:
    """The data that a run was trained on, read and split in the same way, or the `data` given by name, folder or id.

    Images are made by the model's image processor and normalised as it does, whatever the statistics of the data are:
    the weights were trained with them. Labels have the numbers of the model's classes. Decoded images are kept in the
    folder `cache`, for the next time.
    """
    content = read_recipe(run)
    if removed := removed_problems(content, "data."):
        raise ConfigError(f"{run}/{RECIPE}", removed)
    settings = content.get("data", {})
    source = data or settings.get("source")
    if source is None:
        raise ConfigError("evaluate", [f"{run} has no recipe.yaml that names its data; pass data=FOLDER"])
    # Other data has the same split as in training, but columns of its own.
    columns = ["image_column", "label_column"] if source == settings.get("source") else []
    kept = ("validation", "skip_unreadable", *columns)
    options = {key: settings[key] for key in kept if key in settings}
    dataset = load_data(source, processor=model.image_processor, cache=cache, **options)
    seen = statistics_of(model.image_processor)
    dataset = replace(dataset, mean=seen.mean, std=seen.std)
    remedy = "give data of the classes that the model knows with data="
    return align_classes(dataset, model.classes, f"the head of {os.fspath(run)}", remedy)


def evaluation_batches(
    data: DataSet, split: str, size: int = EVALUATION_BATCH, limit: int | None = None, **where: Any
) -> Batches:
    """Every image of a split once, without augmentation; only the first `limit` of them, if given."""
    images = {"train": data.train, "validation": data.validation, "test": data.test}[split]
    if limit is not None and limit < len(images):
        images = images.subset(torch.arange(limit))
    options = {"mean": data.mean, "std": data.std, "num_classes": data.num_classes, **where}
    return make_batches(images, size, **options)
