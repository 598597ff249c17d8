"""A folder of class folders: train/<class>/*.png and test/<class>/*.png, or <class>/*.png alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from odevit.data.parts import is_part_name
from odevit.data.records import Encoded, Records, Source

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})

_LAYOUT = "expected train/<class>/*.png (and test/<class>/*.png), or <class>/*.png"


class FileRecords(Records):
    """Pictures that are files."""

    def __init__(self, paths: Sequence[Path], labels: Sequence[int]) -> None:
        self.paths = list(paths)
        self.labels = torch.tensor(labels, dtype=torch.int64)

    def read(self, index: int) -> Encoded:
        return self.paths[index]

    def name(self, index: int) -> str:
        return str(self.paths[index])


def folder_source(folder: Path) -> Source:
    """The class folders under `folder`; class names are the folder names of the training part, sorted."""
    parts = {child.name: child for child in _folders(folder) if is_part_name(child.name)}
    if not parts:
        parts = {"train": folder}
    found = {name: _class_files(path) for name, path in parts.items()}
    every = {name for files in found.values() for name in files}
    _complain_of_nothing(folder, parts, found)
    classes = tuple(sorted(every))
    number = {name: position for position, name in enumerate(classes)}
    records: dict[str, Records] = {}
    for part, by_class in found.items():
        pairs = [(path, number[name]) for name in sorted(by_class) for path in by_class[name]]
        records[part] = FileRecords([path for path, _ in pairs], [label for _, label in pairs])
    facts = [
        (str(path), path.stat().st_size, path.stat().st_mtime_ns)
        for by_class in found.values()
        for paths in by_class.values()
        for path in paths
    ]
    return Source(name=folder.name, classes=classes, parts=records, facts=tuple(facts))


def _complain_of_nothing(folder: Path, parts: dict[str, Path], found: dict[str, dict[str, list[Path]]]) -> None:
    if not any(paths for by_class in found.values() for paths in by_class.values()):
        loose = sum(1 for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
        said = f"{loose} images lie in it directly, without a class" if loose else "no images were found in it"
        kinds = " ".join(sorted(SUFFIXES))
        raise ValueError(f"the folder {folder} cannot be used: {said}; {_LAYOUT}, files ending in {kinds}.")
    for part, by_class in found.items():
        empty = [str(parts[part] / name) for name, paths in by_class.items() if not paths]
        if empty:
            raise ValueError(
                f"{len(empty)} class folders hold no images: {', '.join(empty[:10])}. Fill or remove them."
            )
    trained = next((found[name] for name in found if name.lower().startswith("train")), None)
    for part, by_class in found.items():
        strange = sorted(set(by_class) - set(trained)) if trained is not None else []
        if strange:
            raise ValueError(
                f"{parts[part]} has classes the training part lacks: {', '.join(strange[:10])};"
                f" it knows {', '.join(sorted(trained or {})[:10])}. Rename or remove those folders."
            )


def _class_files(folder: Path) -> dict[str, list[Path]]:
    return {
        child.name: sorted(path for path in child.rglob("*") if path.suffix.lower() in SUFFIXES)
        for child in _folders(folder)
    }


def _folders(folder: Path) -> list[Path]:
    return sorted(child for child in folder.iterdir() if child.is_dir() and not child.name.startswith("."))
