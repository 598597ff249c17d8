"""name -> model: what the explorer can show, the bundled models and those of the current folder."""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from odevit.bundled import bundled_models
from odevit.core.image_model import ImageModel
from odevit.distill.alignment import Alignment
from odevit.distill.teacher import Teacher
from odevit.distill.teacher_lookup import name_of_teacher
from odevit.errors import unknown_name
from odevit.explorer.traces import lens_of
from odevit.loading import load
from odevit.surgery.modeling_student import OdeStudent

FOLDERS = ("checkpoints", "runs")
DEEP = 3
"""How many folders below these a model may lie: runs/GROUP/RUN/teacher."""
KEPT = 4
"""Models that stay in memory; the one that was not asked for the longest goes first."""


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to be shown: an equation, with its teacher where that is at hand, or a ViT and its lens."""

    name: str
    model: ImageModel | None = None
    teacher: Teacher | None = None
    shares: Sequence[float] | None = None
    lens: OdeStudent | None = None


class ModelCatalog:
    """The models that can be asked for by name, and no others: a name from outside never becomes a path.

    Args:
        folder: whose checkpoints/ and runs/ are listed.
        first: a bundled model, or a folder anywhere, that stands first in the list.
    """

    def __init__(self, folder: str | os.PathLike[str] = ".", first: str | os.PathLike[str] = "cifar10") -> None:
        self.folder, self.first = Path(folder).absolute(), os.fspath(first)
        self._loaded: OrderedDict[str, LoadedModel] = OrderedDict()

    def sources(self) -> dict[str, str]:
        """{name: a bundled model or a path}, as the folders are now."""
        found = {self.first: self.first} | {name: name for name in bundled_models()}
        for part in FOLDERS:
            patterns = ["/".join(["*"] * depth + ["config.json"]) for depth in range(1, DEEP + 1)]
            for config in sorted(file for pattern in patterns for file in (self.folder / part).glob(pattern)):
                if _is_model(config):
                    found[config.parent.relative_to(self.folder).as_posix()] = str(config.parent)
        for name, source in list(found.items()):
            teacher = name_of_teacher(source) if Path(source).is_dir() else None
            if teacher is not None and teacher not in found.values():
                found[f"teacher of {name}"] = teacher
        return found

    def take(self, name: str) -> LoadedModel:
        """The model of that name, loaded unless it was asked for before; a ValueError for a name that is not here."""
        sources = self.sources()
        if name not in sources:
            raise ValueError(unknown_name("model", name, sources))
        if name not in self._loaded:
            self._loaded[name] = _load(name, sources[name])
        self._loaded.move_to_end(name)
        while len(self._loaded) > KEPT:
            self._loaded.popitem(last=False)
        return self._loaded[name]


def _load(name: str, source: str) -> LoadedModel:
    model = load(source).requires_grad_(False)
    if not model.depth.has_trajectory:
        teacher = Teacher(bundled_models().get(source, source))
        return LoadedModel(name, teacher=teacher, lens=lens_of(teacher))
    found = name_of_teacher(source) if Path(source).is_dir() else None
    alignment = Path(source) / "alignment.json"
    shares = Alignment.load(alignment).shares if found and alignment.is_file() else None
    return LoadedModel(name, model, None if found is None else Teacher(found), shares)


def _is_model(config: Path) -> bool:
    """Whether a config.json is of a model; checkpoints of an optimiser and the like have others, or none."""
    try:
        about = json.loads(config.read_text())
    except (OSError, ValueError):
        return False  # broken files are not offered; asked for by its folder, one says what is wrong
    return isinstance(about, dict) and "model_type" in about
