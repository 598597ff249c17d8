"""A name, a folder or a hub id -> Source: undecoded pictures with their labels, read by `datasets`, never copied.

    class folders    the paths, as a table in memory
    parquet files    one row group at a time
    a hub id         what `load_dataset` keeps on disk, memory-mapped

Local files do not go through `load_dataset("imagefolder")` or `("parquet")`: both first write an Arrow copy below
~/.cache/huggingface, and imagefolder drops the labels when classes have subfolders and overlooks empty classes.
`datasets` takes most of a second to import, so only the functions that need it import it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from odevit.data.parts import is_part_name, numbered_classes
from odevit.data.records import ArrayRecords, Records, Shard, Source, TableRecords
from odevit.errors import unknown_name
from odevit.registry import Registry

if TYPE_CHECKING:
    from datasets import Dataset, Features

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})

LABEL_NAMES = ("label", "labels", "fine_label", "class", "target", "category", "cls")
"""Names a label column usually has, the most usual first."""

named_sources: Registry[Callable[[], Source]] = Registry("data set")


@named_sources.register("digits")
def _digits() -> Source:
    """1,797 handwritten digits of 8x8 grey levels 0..16, part of scikit-learn, so there is nothing to download."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    levels = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    records = ArrayRecords(levels, torch.from_numpy(digits.target.astype(np.int64)))
    return Source("digits", tuple(str(digit) for digit in range(10)), {"train": records}, ("digits",))


def find_source(data: str | Path, *, image_column: str | None = None, label_column: str | None = None) -> Source:
    """The source `data` stands for; see `load_data` for what it may be."""
    if isinstance(data, str) and data in named_sources:
        return named_sources[data]()
    path = Path(data).expanduser()
    if path.is_dir():
        path = path.resolve()
        files = _parquet_files(path)
        return _parquet_source(path.name, files, image_column, label_column) if files else _folder_source(path)
    names = ", ".join(repr(name) for name in named_sources)
    kinds = (
        f"data= may be a name ({names}), a folder with files like train-00000-of-00001.parquet, a folder of"
        " class folders (train/<class>/*.png or <class>/*.png), or a hub id ('uoft-cs/cifar10')."
    )
    text = str(data)
    looks_like_path = isinstance(data, Path) or text.startswith((".", "/", "~")) or text.count("/") > 1
    if looks_like_path or "\\" in text or not text or path.exists():
        problem = "is a file, not a folder" if path.is_file() else "does not exist"
        raise ValueError(f"data={text!r} {problem}. {kinds}")
    otherwise = f"As a name it is an {unknown_name('data set', text, named_sources)} {kinds}"
    return _hub_source(text, image_column, label_column, otherwise)


def _folder_source(folder: Path) -> Source:
    from datasets import Dataset

    parts = {child.name: child for child in _subfolders(folder) if is_part_name(child.name)} or {"train": folder}
    files = {
        part: {
            child.name: sorted(file for file in child.rglob("*") if file.suffix.lower() in SUFFIXES)
            for child in _subfolders(path)
        }
        for part, path in parts.items()
    }
    _check_folders(folder, parts, files)
    classes = tuple(sorted({name for by_class in files.values() for name in by_class}))
    records = {}
    for part, by_class in files.items():
        paths = [str(file) for name in by_class for file in by_class[name]]
        labels = np.repeat([classes.index(name) for name in by_class], [len(by_class[name]) for name in by_class])
        dataset = Dataset.from_dict({"image": paths, "label": labels})
        records[part] = _table_records(dataset, "image", "label", None)
    every = (file for by_class in files.values() for paths in by_class.values() for file in paths)
    return Source(folder.name, classes, records, _file_facts(every))


def _subfolders(folder: Path) -> list[Path]:
    return sorted(child for child in folder.iterdir() if child.is_dir() and not child.name.startswith("."))


def _check_folders(folder: Path, parts: Mapping[str, Path], files: Mapping[str, Mapping[str, list[Path]]]) -> None:
    if not any(paths for by_class in files.values() for paths in by_class.values()):
        loose = sum(1 for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
        problem = f"{loose} images lie in it directly, without a class" if loose else "no images were found in it"
        raise ValueError(
            f"the folder {folder} cannot be used: {problem}; expected train/<class>/*.png (and test/<class>/*.png),"
            f" or <class>/*.png, files ending in {' '.join(sorted(SUFFIXES))}."
        )
    empty = [str(parts[part] / name) for part, by_class in files.items() for name in by_class if not by_class[name]]
    if empty:
        raise ValueError(f"{len(empty)} class folders hold no images: {', '.join(empty[:10])}. Fill or remove them.")
    known = next((sorted(files[part]) for part in files if part.lower().startswith("train")), None)
    for part, by_class in files.items():
        unknown = [] if known is None else sorted(set(by_class) - set(known))
        if unknown:
            raise ValueError(
                f"{parts[part]} has classes the training part lacks: {', '.join(unknown[:10])};"
                f" it has {', '.join((known or [])[:10])}. Rename or remove those folders."
            )


def _parquet_files(folder: Path) -> dict[str, list[Path]]:
    """The parquet files of each part, in order; empty when the folder is not in hub layout."""
    parts: dict[str, list[Path]] = {}
    for path in sorted([*folder.glob("*.parquet"), *folder.glob("data/*.parquet")]):
        part = re.sub(r"-\d+-of-\d+.*$", "", path.stem)
        if is_part_name(part):
            parts.setdefault(part, []).append(path)
    return parts


def _parquet_source(
    name: str, files: Mapping[str, list[Path]], image_column: str | None, label_column: str | None
) -> Source:
    first = next(iter(files.values()))[0]
    features = _parquet_features(_open_parquet(first).schema_arrow)
    image, label = _choose_columns(features, image_column, label_column, str(first))
    parts = {part: _parquet_records(paths, image, label) for part, paths in files.items()}
    facts = _file_facts(path for paths in files.values() for path in paths)
    return Source(name, _class_names(features[label], parts), parts, (*facts, image, label))


def _parquet_records(files: list[Path], image: str, label: str) -> Records:
    """Rows of parquet files; only the labels are read now, the images one row group at a time."""
    shards, labels = [], []
    for path in files:
        file = _open_parquet(path)
        for column in (image, label):
            if column not in file.schema_arrow.names:
                raise ValueError(f"{path} has no column {column!r}; it has {', '.join(file.schema_arrow.names)}.")
        labels.append(_label_tensor(file.read(columns=[label]).column(0), label, str(path)))
        first = 0
        for group in range(file.metadata.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            shards.append(Shard(partial(_row_group, path, group, image), rows, str(path), first, path.parent))
            first += rows
    return TableRecords(shards, image, torch.cat(labels), in_blocks=True)


def _row_group(path: Path, group: int, column: str) -> Dataset:
    from datasets import Dataset

    table = _open_parquet(path).read_row_group(group, columns=[column]).replace_schema_metadata(None)
    return _undecoded(Dataset(table, fingerprint=f"{path}:{group}"), column)


def _open_parquet(path: Path) -> Any:
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(path)
    except (OSError, ValueError) as error:  # pyarrow's own errors are of these kinds
        raise ValueError(f"{path} is not a readable parquet file ({error}). Download it again.") from error


def _parquet_features(schema: Any) -> Features:
    """The features noted in a parquet schema, where they agree with it."""
    import pyarrow
    from datasets import Features

    # `datasets` writes labels as int64 and ignores the class names of a column rewritten with another width.
    for position, field in enumerate(schema):
        if pyarrow.types.is_integer(field.type):
            schema = schema.set(position, field.with_type(pyarrow.int64()).with_nullable(True))
    try:
        return Features.from_arrow_schema(schema)
    except ValueError:  # the notes are incomplete, as of classes without names: the types must do
        return Features.from_arrow_schema(schema.remove_metadata())


def _hub_source(identifier: str, image_column: str | None, label_column: str | None, otherwise: str) -> Source:
    """The data set `identifier`, "owner/name" or "owner/name:configuration". `otherwise` ends the error message."""
    import datasets

    name, _, configuration = identifier.partition(":")
    try:
        splits = datasets.load_dataset(name, configuration or None)
    except (OSError, ValueError, RuntimeError) as error:  # absent, unreachable, or in need of a configuration
        raise ValueError(f"data={identifier!r} could not be fetched from the hub ({error}). {otherwise}") from error
    features = next(iter(splits.values())).features
    image, label = _choose_columns(features, image_column, label_column, identifier)
    parts = {part: _table_records(split, image, label, f"split {part!r}") for part, split in splits.items()}
    facts = [(part, len(split), split._fingerprint) for part, split in splits.items()]
    return Source(identifier, _class_names(features[label], parts), parts, (image, label, *facts))


def _table_records(dataset: Dataset, image: str, label: str, where: str | None) -> Records:
    labels = dataset.select_columns([label]).with_format("arrow")[:].column(0)
    shard = Shard(partial(_undecoded, dataset, image), len(dataset), where)
    return TableRecords([shard], image, _label_tensor(labels, label, where or "the folder"))


def _undecoded(dataset: Dataset, column: str) -> Dataset:
    """The column of images alone, as bytes or paths: we decode ourselves, to name and skip unreadable files."""
    from datasets import Image

    return dataset.select_columns([column]).cast_column(column, Image(decode=False))


def _label_tensor(column: Any, name: str, where: str) -> Tensor:
    if column.null_count:
        raise ValueError(f"{column.null_count} rows of {where} have no {name!r}. Label or remove them.")
    return torch.from_numpy(column.to_numpy().astype(np.int64))


def _class_names(feature: Any, parts: Mapping[str, Records]) -> tuple[str, ...]:
    return tuple(getattr(feature, "names", None) or numbered_classes(parts))


def _file_facts(files: Iterable[Path]) -> tuple[object, ...]:
    stats = ((str(file), file.stat()) for file in files)
    return tuple((path, stat.st_size, stat.st_mtime_ns) for path, stat in stats)


def _choose_columns(
    features: Features, image_column: str | None, label_column: str | None, where: str
) -> tuple[str, str]:
    """The columns of the images and of the labels: as asked for, else by type and by usual name."""
    columns = {name: _described(feature) for name, feature in features.items()}
    listed = ", ".join(f"{name!r} ({described})" for name, described in columns.items()) or "no columns"
    for argument, column in (("image_column", image_column), ("label_column", label_column)):
        if column is not None and column not in columns:
            raise ValueError(f"{argument}={column!r} is not a column of {where}; it has {listed}.")
    image = image_column or next((name for name, described in columns.items() if described == "image"), None)
    if image is None:
        raise ValueError(f"{where} has no image column; it has {listed}. Set image_column='...'.")
    if columns[image] not in ("image", "string"):
        raise ValueError(f"image_column={image!r} of {where} holds {columns[image]}; expected images: it has {listed}.")
    classes = [name for name, described in columns.items() if described == "class"]
    usual = [name for name in LABEL_NAMES if name in columns] or (classes if len(classes) == 1 else [])
    label = label_column or next(iter(usual), None)
    if label is None:
        raise ValueError(f"{where} has no label column; it has {listed}. Set label_column='...'.")
    usable = [name for name, described in columns.items() if described.startswith(("class", "int", "uint"))]
    if label not in usable:
        instead = f"set label_column={usable[0]!r}" if usable else "number the classes 0, 1, 2, ... first"
        raise ValueError(
            f"the label column {label!r} of {where} holds {columns[label]}; expected integers, one number"
            f" per class: {instead} (with `datasets`: dataset.class_encode_column({label!r}))."
        )
    return image, label


def _described(feature: Any) -> str:
    """What a column holds: "image", "class" (named integers), or the type of its values."""
    import datasets

    if isinstance(feature, datasets.Image) or (isinstance(feature, dict) and "bytes" in feature):
        return "image"
    if isinstance(feature, datasets.ClassLabel):
        return "class"
    described = feature.dtype if isinstance(feature, datasets.Value) else type(feature).__name__
    return "image" if described in ("binary", "large_binary") else described
