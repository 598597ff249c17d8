"""What a recipe learns from, as batches: read, split, augmented, on the device."""

from __future__ import annotations

from typing import Any

import torch

from odevit.data import Augmentation, Batches, DataSet, load_data, make_batches
from odevit.train.recipe import Recipe

EVALUATION_BATCH = 512


def choose_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def read_data(recipe: Recipe, image_size: int) -> DataSet:
    """The data set of a recipe, at the size the model takes unless the recipe says otherwise."""
    source = recipe.data
    return load_data(
        source.source,
        image_size=source.image_size or image_size,
        image_column=source.image_column,
        label_column=source.label_column,
        validation=source.validation,
        split_seed=source.split_seed,
        skip_unreadable=source.skip_unreadable,
        resident_limit_gb=source.resident_limit_gb,
        cache=source.cache,
    )


def training_batches(data: DataSet, size: int, augmentation: Augmentation, *, seed: int, **where: Any) -> Batches:
    """Shuffled, augmented batches, all of one size."""
    return make_batches(
        data.train,
        size,
        augmentation=augmentation,
        mean=data.mean,
        std=data.std,
        num_classes=data.num_classes,
        seed=seed,
        shuffle=True,
        drop_last=True,
        **where,
    )


def evaluation_batches(
    data: DataSet, split: str, size: int = EVALUATION_BATCH, limit: int | None = None, **where: Any
) -> Batches:
    """The images of a split as they are, every one of them once; the first `limit` only, if given."""
    images = {"train": data.train, "validation": data.validation, "test": data.test}[split]
    if limit is not None and limit < len(images):
        images = images.subset(torch.arange(limit))
    options = {"mean": data.mean, "std": data.std, "num_classes": data.num_classes, **where}
    return make_batches(images, size, **options)
