"""A data set of the Hugging Face hub by its id: "uoft-cs/cifar10", or "owner/name:configuration"."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from odevit.data.columns import Column, choose_image_column, choose_label_column
from odevit.data.parts import numbered_classes
from odevit.data.records import Encoded, Records, Source


class HubRecords(Records):
    """Rows of one split, kept by `datasets` on disk and read one by one."""

    def __init__(self, split: Any, part: str, image_column: str, label_column: str) -> None:
        self.split = split.select_columns([image_column])
        self.part = part
        self.image_column = image_column
        self.labels = torch.from_numpy(np.asarray(split[label_column], dtype=np.int64))

    def read(self, index: int) -> Encoded:
        value = self.split[index][self.image_column]
        if value is None:
            raise ValueError(f"{self.name(index)} holds no image in column {self.image_column!r}")
        return value["bytes"] if value["bytes"] is not None else Path(value["path"])

    def name(self, index: int) -> str:
        return f"row {index} of split {self.part!r}"


def hub_source(identifier: str, *, image_column: str | None, label_column: str | None, otherwise: str) -> Source:
    """Fetch `identifier` through `datasets`. `otherwise` ends the error: what else `data=` may be."""
    datasets = _datasets()
    name, _, configuration = identifier.partition(":")
    try:
        found = datasets.load_dataset(name, configuration or None)
    except (OSError, ValueError, RuntimeError) as error:  # not there, not reachable, or needs a configuration
        raise ValueError(f"data={identifier!r} could not be fetched from the hub ({error}). {otherwise}") from error
    first = next(iter(found.values()))
    columns = _columns(datasets, first.features)
    image = choose_image_column(columns, image_column, identifier)
    label = choose_label_column(columns, label_column, identifier)
    parts: dict[str, Records] = {}
    facts: list[object] = [image, label]
    for part, split in found.items():
        undecoded = split.cast_column(image, datasets.Image(decode=False))  # we decode, in threads
        parts[part] = HubRecords(undecoded, part, image, label)
        facts.append((part, len(split), split._fingerprint))
    classes = columns[label].classes or numbered_classes(parts)
    return Source(name=identifier, classes=classes, parts=parts, facts=tuple(facts))


def _columns(datasets: ModuleType, features: Any) -> dict[str, Column]:
    columns: dict[str, Column] = {}
    for name, feature in features.items():
        if isinstance(feature, datasets.Image):
            columns[name] = Column("image", "image")
        elif isinstance(feature, datasets.ClassLabel):
            columns[name] = Column("class", "class", tuple(feature.names))
        elif isinstance(feature, datasets.Value):
            integer = feature.dtype.startswith(("int", "uint"))
            columns[name] = Column("integer" if integer else "other", feature.dtype)
        else:
            columns[name] = Column("other", type(feature).__name__)
    return columns


def _datasets() -> ModuleType:
    try:
        import datasets
    except ImportError as error:
        raise ValueError("reading the hub needs `datasets`: pip install 'odevit[data]'") from error
    return datasets
