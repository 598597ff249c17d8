"""Pictures of folders: more images to train on, without labels."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch

from odevit.data.records import JoinedRecords, PathRecords, Records, Source
from odevit.data.source import (
    SHARD,
    SUFFIXES,
    column_of_images,
    file_facts,
    parquet_records,
    visible_files,
)
from odevit.data.splits import is_split_name

UNLABELLED = "unlabelled"
"""What the part is called."""


def find_unlabelled(folders: Iterable[str | Path], known: Iterable[Path] = ()) -> Source:
    """Every picture of these folders, at any depth, and of their parquet files. Their labels are 0 and mean nothing.

    Parts that are named as test or validation parts are left out, and so are the files `known`, those of the data
    itself, whatever links lead to them: what is measured on must not be trained on.
    """
    measured = {_identity(file) for file in known}
    records: list[Records] = []
    files: tuple[Path, ...] = ()
    for folder in folders:
        own, found = _of_folder(Path(folder).expanduser(), measured)
        records += found
        files += own
    return Source(UNLABELLED, (), {UNLABELLED: JoinedRecords(records)}, file_facts(files), files)


def _of_folder(folder: Path, measured: set[object]) -> tuple[tuple[Path, ...], list[Records]]:
    """The files of a folder that may be trained on, and the records in them."""
    if not folder.is_dir():
        raise ValueError(f"unlabelled={str(folder)!r} is no folder; expected one with images, or with parquet files")
    folder = folder.resolve()
    every = [path for path in visible_files(folder) if path.suffix.lower() in {*SUFFIXES, ".parquet"}]
    named = [path for path in every if _is_for_training(path.relative_to(folder))]
    files = [path for path in named if _identity(path) not in measured]
    # A table without images, of captions say, may lie beside them.
    columns = {path: column_of_images(path) for path in files if path.suffix.lower() == ".parquet"}
    pictures = [path for path in files if path not in columns]
    records: list[Records] = [PathRecords(pictures, torch.zeros(len(pictures), dtype=torch.int64))]
    records += [parquet_records([path], column, None) for path, column in columns.items() if column]
    if not any(map(len, records)):
        raise ValueError(
            f"unlabelled={str(folder)!r} holds no images to train on"
            f"{' but those of the data' if len(files) < len(named) else ''}; expected files ending in "
            f"{' '.join(sorted(SUFFIXES))}, or parquet files with a column of images"
        )
    return tuple(files), [part for part in records if len(part)]


def _identity(path: Path) -> object:
    """What a file is, by whatever name; one that cannot be asked is told from others by its name."""
    try:
        facts = path.stat()
    except OSError:
        return str(path)
    return facts.st_dev, facts.st_ino


def _is_for_training(path: Path) -> bool:
    names = [*path.parts[:-1], SHARD.sub("", path.stem)]
    return all(name.lower().startswith("train") for name in names if is_split_name(name))
