"""folders -> more images to train on, without labels."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch

from odevit.data.records import JoinedRecords, PathRecords, Records, Source
from odevit.data.source import SHARD, SUFFIXES, column_of_images, file_fingerprint, parquet_records, visible_files
from odevit.data.splits import is_split_name

UNLABELLED = "unlabelled"
"""The name of the split."""


def find_unlabelled(folders: Iterable[str | Path], known: Iterable[Path] = ()) -> Source:
    """Every image of these folders, at any depth, and of their parquet files, with label 0.

    Test and validation splits, by their names, are left out, and so are the files `known`, those of the data set
    itself, even behind links: a model must not be trained on images that it is measured on.
    """
    excluded = {_identity(file) for file in known}
    records: list[Records] = []
    files: list[Path] = []
    for folder in folders:
        folder_files, folder_records = _read_folder(Path(folder).expanduser(), excluded)
        files += folder_files
        records += folder_records
    return Source(UNLABELLED, (), {UNLABELLED: JoinedRecords(records)}, file_fingerprint(files), tuple(files))


def _read_folder(folder: Path, excluded: set[object]) -> tuple[list[Path], list[Records]]:
    """The files of a folder that may be trained on, and the records in them."""
    if not folder.is_dir():
        raise ValueError(f"unlabelled={str(folder)!r} is no folder; expected one with images, or with parquet files")
    folder = folder.resolve()
    paths = [path for path in visible_files(folder) if path.suffix.lower() in {*SUFFIXES, ".parquet"}]
    training = [path for path in paths if _is_for_training(path.relative_to(folder))]
    files = [path for path in training if _identity(path) not in excluded]
    # Tables without images, such as captions, may lie beside them.
    columns = {path: column_of_images(path) for path in files if path.suffix.lower() == ".parquet"}
    images = [path for path in files if path not in columns]
    records: list[Records] = [PathRecords(images, torch.zeros(len(images), dtype=torch.int64))]
    records += [parquet_records([path], column, None) for path, column in columns.items() if column]
    if not any(map(len, records)):
        raise ValueError(
            f"unlabelled={str(folder)!r} holds no images to train on"
            f"{' but those of the data' if len(files) < len(training) else ''}; expected files ending in "
            f"{' '.join(sorted(SUFFIXES))}, or parquet files with a column of images"
        )
    return files, [found for found in records if len(found)]


def _identity(path: Path) -> object:
    """Device and inode, which are the same behind every link; the path if the file cannot be read."""
    try:
        status = path.stat()
    except OSError:
        return str(path)
    return status.st_dev, status.st_ino


def _is_for_training(path: Path) -> bool:
    names = [*path.parts[:-1], SHARD.sub("", path.stem)]
    return all(name.lower().startswith("train") for name in names if is_split_name(name))
