"""A name, a folder or a hub id -> Source: encoded images with their labels, read by `datasets`, never copied.

    class folders    the paths
    parquet files    one row group at a time
    a hub id         what `load_dataset` keeps on disk, memory-mapped

Local files do not go through `load_dataset("imagefolder")` or `("parquet")`: both first write an Arrow copy to
~/.cache/huggingface; imagefolder drops the labels if classes have subfolders, and does not see empty classes.
`datasets` takes most of a second to import, so it is imported inside functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from odevit.data.records import ArrayRecords, PathRecords, Records, Shard, Source, TableRecords
from odevit.data.splits import is_split_name
from odevit.errors import unknown_name
from odevit.hub import hub_access, is_path
from odevit.registry import Registry

if TYPE_CHECKING:
    from datasets import Dataset, Features

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})

SHARD = re.compile(r"-\d+-of-\d+.*$")

LABEL_NAMES = ("label", "labels", "fine_label", "class", "target", "category", "cls")
"""Usual names of a label column, the most frequent first."""

DATA_SOURCES: Registry[Callable[[], Source]] = Registry("data set")


@DATA_SOURCES.register("digits")
def _digits() -> Source:
    """1,797 handwritten digits of 8x8 grey levels 0..16, part of scikit-learn, so there is nothing to download."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    levels = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    records = ArrayRecords(levels, torch.from_numpy(digits.target.astype(np.int64)))
    return Source("digits", tuple(str(digit) for digit in range(10)), {"train": records}, ("digits",))


def find_source(data: str | Path, *, image_column: str | None = None, label_column: str | None = None) -> Source:
    """Find a data set by its name, folder or hub id, see `load_data`."""
    if isinstance(data, str) and data in DATA_SOURCES:
        return DATA_SOURCES[data]()
    path = Path(data).expanduser()
    if path.is_dir() and str(data):  # Path("") is the current folder
        path = path.resolve()
        files = _parquet_files(path)
        if files:
            return _parquet_source(path.name, files, image_column, label_column)
        columns = {"image_column": image_column, "label_column": label_column}
        if given := [f"data.{name}={value}" for name, value in columns.items() if value is not None]:
            raise ValueError(f"{path} holds class folders, which have no columns; leave out {' and '.join(given)}")
        return _folder_source(path)
    names = ", ".join(repr(name) for name in DATA_SOURCES)
    kinds = (
        f"data= may be a name ({names}), a folder with files like train-00000-of-00001.parquet, a folder of"
        " class folders (train/<class>/*.png or <class>/*.png), or a hub id ('uoft-cs/cifar10')."
    )
    text = str(data)
    if isinstance(data, Path) or is_path(text):
        problem = "is a file, not a folder" if path.is_file() else "does not exist"
        raise ValueError(f"data={text!r} {problem}. {kinds}")
    otherwise = f"As a name it is an {unknown_name('data set', text, DATA_SOURCES)} {kinds}"
    return _hub_source(text, image_column, label_column, otherwise)


def _folder_source(folder: Path) -> Source:
    splits = {child.name: child for child in _subfolders(folder) if is_split_name(child.name)} or {"train": folder}
    files_of = {
        split: {child.name: image_files(child) for child in _subfolders(path)} for split, path in splits.items()
    }
    _check_folders(folder, splits, files_of)
    classes = tuple(sorted(set().union(*files_of.values())))
    records: dict[str, Records] = {}
    files: tuple[Path, ...] = ()
    for split, by_class in files_of.items():
        paths = tuple(chain.from_iterable(by_class.values()))
        labels = [classes.index(name) for name, files in by_class.items() for _ in files]
        records[split] = PathRecords(paths, torch.tensor(labels, dtype=torch.int64))
        files += paths
    return Source(folder.name, classes, records, file_fingerprint(files), files)


def image_files(folder: Path) -> list[Path]:
    """The image files of a folder, at any depth."""
    return [path for path in visible_files(folder) if path.suffix.lower() in SUFFIXES]


def visible_files(folder: Path) -> list[Path]:
    """All paths in a folder, at any depth, except those with a name that begins with a dot, such as .DS_Store."""
    return sorted(
        path for path in folder.rglob("*") if not any(name.startswith(".") for name in path.relative_to(folder).parts)
    )


def _subfolders(folder: Path) -> list[Path]:
    return sorted(child for child in folder.iterdir() if child.is_dir() and not child.name.startswith("."))


def _check_folders(folder: Path, splits: Mapping[str, Path], files: Mapping[str, Mapping[str, list[Path]]]) -> None:
    empty = [str(splits[split] / name) for split, by_class in files.items() for name in by_class if not by_class[name]]
    if len(empty) == sum(map(len, files.values())):
        loose = sum(path.parent == folder for path in image_files(folder))
        problem = f"{loose} images lie in it directly, without a class" if loose else "no images were found in it"
        if any(folder.glob("*.parquet")):
            problem += " (parquet files are read if called train-00000-of-00001.parquet, test-..., and so on)"
        raise ValueError(
            f"the data folder {folder} cannot be used: {problem}; expected train/<class>/*.png (and"
            f" test/<class>/*.png), or <class>/*.png, files ending in {' '.join(sorted(SUFFIXES))}."
        )
    if empty:
        raise ValueError(f"{len(empty)} class folders hold no images: {', '.join(empty[:10])}. Fill or remove them.")
    known = next((sorted(files[split]) for split in files if split.lower().startswith("train")), [])
    for split, by_class in files.items():
        unknown = sorted(set(by_class) - set(known))
        if known and unknown:
            raise ValueError(
                f"{splits[split]} has classes the training split lacks: {', '.join(unknown[:10])};"
                f" it has {', '.join(known[:10])}. Rename or remove those folders."
            )


def _parquet_files(folder: Path) -> dict[str, list[Path]]:
    """The parquet files of each split, in order; {} if the folder is not in hub layout."""
    splits: dict[str, list[Path]] = {}
    for path in sorted([*folder.glob("*.parquet"), *folder.glob("data/*.parquet")]):
        split = SHARD.sub("", path.stem)
        if is_split_name(split):
            splits.setdefault(split, []).append(path)
    return splits


def _parquet_source(
    name: str, files: Mapping[str, list[Path]], image_column: str | None, label_column: str | None
) -> Source:
    first = next(iter(files.values()))[0]
    features = _parquet_features(_open_parquet(first).schema_arrow)
    image, label = _choose_columns(features, image_column, label_column, str(first))
    splits = {split: parquet_records(paths, image, label) for split, paths in files.items()}
    every = tuple(chain.from_iterable(files.values()))
    return Source(name, _class_names(features[label]), splits, (*file_fingerprint(every), image, label), every)


def parquet_records(files: list[Path], image: str, label: str | None) -> Records:
    """Rows of parquet files. Labels, if any, are read now; images later, one row group at a time."""
    shards, labels = [], []
    for path in files:
        file = _open_parquet(path)
        for column in (image, label):
            if column is not None and column not in file.schema_arrow.names:
                raise ValueError(f"{path} has no column {column!r}; it has {', '.join(file.schema_arrow.names)}.")
        if label is None:
            labels.append(torch.zeros(file.metadata.num_rows, dtype=torch.int64))
        else:
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
    except (OSError, ValueError) as error:  # pyarrow's errors derive from these
        raise ValueError(f"{path} is not a readable parquet file ({error}). Download it again.") from error


def column_of_images(path: Path) -> str | None:
    """The first column of images of a parquet file, or None."""
    columns = _parquet_features(_open_parquet(path).schema_arrow).items()
    return next((name for name, feature in columns if _described(feature) == "image"), None)


def _parquet_features(schema: Any) -> Features:
    """The features in the metadata of a parquet schema, if they agree with the schema; otherwise those of its types."""
    import pyarrow
    from datasets import Features

    # `datasets` writes labels as int64; it ignores the class names of a column that was rewritten as int32.
    for position, field in enumerate(schema):
        if pyarrow.types.is_integer(field.type):
            schema = schema.set(position, field.with_type(pyarrow.int64()).with_nullable(True))
    try:
        return Features.from_arrow_schema(schema)
    except ValueError:  # incomplete metadata, such as classes without names
        return Features.from_arrow_schema(schema.remove_metadata())


def _hub_source(identifier: str, image_column: str | None, label_column: str | None, otherwise: str) -> Source:
    """The data set "owner/name" or "owner/name:configuration"; `otherwise` is the end of the error message."""
    import datasets

    name, _, configuration = identifier.partition(":")
    try:
        with hub_access(name):
            splits = datasets.load_dataset(name, configuration or None)
    except (OSError, ValueError, RuntimeError) as error:  # missing, unreachable, or without a configuration
        raise ValueError(f"data={identifier!r} could not be fetched from the hub ({error}). {otherwise}") from error
    features = next(iter(splits.values())).features
    image, label = _choose_columns(features, image_column, label_column, identifier)
    records = {name: _table_records(split, image, label, f"split {name!r}") for name, split in splits.items()}
    fingerprint = [(name, len(split), split._fingerprint) for name, split in splits.items()]
    return Source(identifier, _class_names(features[label]), records, (image, label, *fingerprint))


def _table_records(dataset: Dataset, image: str, label: str, where: str) -> Records:
    labels = dataset.select_columns([label]).with_format("arrow")[:].column(0)
    shard = Shard(partial(_undecoded, dataset, image), len(dataset), where)
    return TableRecords([shard], image, _label_tensor(labels, label, where))


def _undecoded(dataset: Dataset, column: str) -> Dataset:
    """Only the column of images, as bytes or paths: our decoder can name and skip unreadable files."""
    from datasets import Image

    return dataset.select_columns([column]).cast_column(column, Image(decode=False))


def _label_tensor(column: Any, name: str, where: str) -> Tensor:
    if column.null_count:
        raise ValueError(f"{column.null_count} rows of {where} have no {name!r}. Label or remove them.")
    return torch.from_numpy(column.to_numpy().astype(np.int64))


def _class_names(feature: Any) -> tuple[str, ...]:
    return tuple(getattr(feature, "names", None) or ())


def file_fingerprint(files: Iterable[Path]) -> tuple[object, ...]:
    """Names, sizes and modification times of files."""
    return tuple((str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files)


def _choose_columns(
    features: Features, image_column: str | None, label_column: str | None, where: str
) -> tuple[str, str]:
    """The columns of images and labels: as given, otherwise the first of the right type and a usual name."""
    columns = {name: _described(feature) for name, feature in features.items()}
    listed = ", ".join(f"{name!r} ({described})" for name, described in columns.items()) or "no columns"
    images = [name for name, described in columns.items() if described == "image"]
    classes = [name for name, described in columns.items() if described == "class"]
    labels = [name for name in LABEL_NAMES if name in columns] or (classes if len(classes) == 1 else [])
    chosen = []
    for kind, asked, usual in (("image", image_column, images), ("label", label_column, labels)):
        if asked is not None and asked not in columns:
            raise ValueError(f"{kind}_column={asked!r} is not a column of {where}; it has {listed}.")
        if asked is None and not usual:
            raise ValueError(f"{where} has no {kind} column; it has {listed}. Set {kind}_column='...'.")
        chosen.append(asked or usual[0])
    image, label = chosen
    if columns[image] not in ("image", "string"):
        raise ValueError(f"image_column={image!r} of {where} holds {columns[image]}; expected images: it has {listed}.")
    usable = [name for name, described in columns.items() if described.startswith(("class", "int", "uint"))]
    if label not in usable:
        instead = f"set label_column={usable[0]!r}" if usable else "number the classes 0, 1, 2, ... first"
        raise ValueError(
            f"the label column {label!r} of {where} holds {columns[label]}; expected integers, one number"
            f" per class: {instead} (with `datasets`: dataset.class_encode_column({label!r}))."
        )
    return image, label


def _described(feature: Any) -> str:
    """The content of a column: "image", "class" (named integers), or the type of its values."""
    import datasets

    if isinstance(feature, datasets.Image) or (isinstance(feature, dict) and "bytes" in feature):
        return "image"
    if isinstance(feature, datasets.ClassLabel):
        return "class"
    described = feature.dtype if isinstance(feature, datasets.Value) else type(feature).__name__
    return "image" if described in ("binary", "large_binary") else described
