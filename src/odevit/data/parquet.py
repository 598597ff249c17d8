"""A folder as the hub lays it out: train-00000-of-00002.parquet, test-00000-of-00001.parquet, maybe in data/.

Needs pyarrow, not `datasets`. Class names stand in the schema, under b"huggingface", as JSON.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import OrderedDict
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from odevit.data.columns import Column, choose_image_column, choose_label_column
from odevit.data.parts import is_part_name, numbered_classes
from odevit.data.records import Encoded, Records, Source

_HELD_GROUPS = 16  # row groups kept by a reader: 16 of the hub's usual 100 to 1000 images are some megabytes


def parquet_files(folder: Path) -> dict[str, list[Path]]:
    """The parquet files of each part, in order; empty when the folder is not in hub layout."""
    parts: dict[str, list[Path]] = {}
    for path in sorted([*folder.glob("*.parquet"), *folder.glob("data/*.parquet")]):
        part = re.sub(r"-\d+-of-\d+.*$", "", path.stem)
        if is_part_name(part):
            parts.setdefault(part, []).append(path)
    return parts


def parquet_source(folder: Path, *, image_column: str | None, label_column: str | None) -> Source:
    """The parts of a folder in hub layout; only the labels are read now."""
    files = parquet_files(folder)
    first = next(iter(files.values()))[0]
    columns = _columns(_open(first).schema_arrow)
    image = choose_image_column(columns, image_column, str(first))
    label = choose_label_column(columns, label_column, str(first))
    parts: dict[str, Records] = {
        part: ParquetRecords(paths, image, _labels(paths, label)) for part, paths in files.items()
    }
    classes = columns[label].classes or numbered_classes(parts)
    stats = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for paths in files.values() for path in paths]
    return Source(name=folder.name, classes=classes, parts=parts, facts=(*stats, image, label))


class ParquetRecords(Records):
    """Rows of parquet files, read one row group at a time, the last few of them kept."""

    def __init__(self, files: list[Path], image_column: str, labels: Tensor) -> None:
        self.image_column = image_column
        self.labels = labels
        self.groups: list[tuple[Path, int]] = []
        self.file_starts: dict[Path, int] = {}
        counts: list[int] = []
        for path in files:
            self.file_starts[path] = sum(counts)
            metadata = _open(path).metadata
            for group in range(metadata.num_row_groups):
                self.groups.append((path, group))
                counts.append(metadata.row_group(group).num_rows)
        self.starts = list(accumulate(counts, initial=0))
        self._held: OrderedDict[int, Any] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_held": OrderedDict()}  # a worker reads its own row groups

    @property
    def blocks(self) -> Tensor | None:
        lengths = torch.tensor(self.starts).diff()
        return torch.repeat_interleave(torch.arange(len(lengths)), lengths)

    def read(self, index: int) -> Encoded:
        group = bisect_right(self.starts, index) - 1
        value = self._group(group)[index - self.starts[group]].as_py()
        if isinstance(value, bytes):
            return value
        if isinstance(value, dict) and value.get("bytes") is not None:
            return bytes(value["bytes"])
        if isinstance(value, dict) and value.get("path") is not None:
            return self.groups[group][0].parent / str(value["path"])
        raise ValueError(f"{self.name(index)} holds no image in column {self.image_column!r}")

    def name(self, index: int) -> str:
        path, _ = self.groups[bisect_right(self.starts, index) - 1]
        return f"row {index - self.file_starts[path]} of {path}"

    def _group(self, number: int) -> Any:
        if number not in self._held:
            path, group = self.groups[number]
            self._held[number] = _open(path).read_row_group(group, columns=[self.image_column]).column(0)
            if len(self._held) > _HELD_GROUPS:
                self._held.popitem(last=False)
        self._held.move_to_end(number)
        return self._held[number]


def _labels(files: list[Path], column: str) -> Tensor:
    arrays = []
    for path in files:
        file = _open(path)
        if column not in file.schema_arrow.names:
            raise ValueError(f"{path} has no column {column!r}; it has {', '.join(file.schema_arrow.names)}.")
        values = file.read(columns=[column]).column(0)
        if values.null_count:
            raise ValueError(f"{values.null_count} rows of {path} have no {column!r}. Label or remove them.")
        arrays.append(values.to_numpy().astype(np.int64))
    return torch.from_numpy(np.concatenate(arrays))


def _columns(schema: Any) -> dict[str, Column]:
    """What the schema says of each column, with the hub's own notes where it carries them."""
    import pyarrow.types as types

    noted = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    features = noted.get("info", {}).get("features", {})
    columns: dict[str, Column] = {}
    for field in schema:
        feature = features.get(field.name)
        kind = feature.get("_type") if isinstance(feature, dict) else None
        holds_bytes = types.is_struct(field.type) and field.type.get_field_index("bytes") >= 0
        if kind == "Image" or holds_bytes or types.is_binary(field.type) or types.is_large_binary(field.type):
            columns[field.name] = Column("image", "image")
        elif kind == "ClassLabel" and types.is_integer(field.type):
            names = feature.get("names")
            columns[field.name] = Column("class", "class", tuple(names) if names else None)
        else:
            columns[field.name] = Column("integer" if types.is_integer(field.type) else "other", str(field.type))
    return columns


def _open(path: Path) -> Any:
    parquet = _pyarrow_parquet()
    try:
        return parquet.ParquetFile(path)
    except (OSError, ValueError) as error:  # pyarrow's own errors are of these kinds
        raise ValueError(f"{path} is not a readable parquet file ({error}). Fetch it again.") from error


def _pyarrow_parquet() -> ModuleType:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError("reading parquet files needs pyarrow: pip install 'odevit[data]'") from error
    return pyarrow.parquet
