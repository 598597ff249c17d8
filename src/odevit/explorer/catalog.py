"""name -> model: the bundled models and those of the current folder, loaded on demand."""

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
from odevit.distill.teacher import Teacher, find_teacher_source
from odevit.errors import unknown_name
from odevit.loading import load
from odevit.surgery.modeling_student import OdeStudent
from odevit.surgery.surgery import get_ode_model

FOLDERS = ("checkpoints", "runs")
MAX_DEPTH = 3
"""How deep models may lie below these folders: runs/GROUP/RUN/teacher."""
CACHE_SIZE = 4
"""Models kept in memory; the least recently used one is dropped first."""


@dataclass(frozen=True)
class LoadedModel:
    """A model with an ODE, and its teacher if that is available locally; or a ViT (`teacher`) and its logit lens."""

    name: str
    model: ImageModel | None = None
    teacher: Teacher | None = None
    layer_shares: Sequence[float] | None = None
    lens: OdeStudent | None = None


class ModelCatalog:
    """The models that a page may name. Names are looked up in this list; they are never used as paths.

    Args:
        folder: whose checkpoints/ and runs/ are listed.
        first: the first entry: a bundled model, or any folder.
    """

    def __init__(self, folder: str | os.PathLike[str] = ".", first: str | os.PathLike[str] = "cifar10") -> None:
        self.folder, self.first = Path(folder).absolute(), os.fspath(first)
        self._loaded: OrderedDict[str, LoadedModel] = OrderedDict()

    def sources(self) -> dict[str, str]:
        """{name: a bundled model or a path}; reads the folders at every call."""
        found = {self.first: self.first} | {name: name for name in bundled_models()}
        for part in FOLDERS:
            patterns = ["/".join(["*"] * depth + ["config.json"]) for depth in range(1, MAX_DEPTH + 1)]
            for config in sorted(file for pattern in patterns for file in (self.folder / part).glob(pattern)):
                if _is_model(config):
                    found[config.parent.relative_to(self.folder).as_posix()] = str(config.parent)
        for name, source in list(found.items()):
            teacher = find_teacher_source(source)
            if teacher is not None and teacher not in found.values():
                found[f"teacher of {name}"] = teacher
        return found

    def get(self, name: str) -> LoadedModel:
        """The model of that name, from the cache or from disk; a ValueError for an unknown name."""
        sources = self.sources()
        if name not in sources:
            raise ValueError(unknown_name("model", name, sources))
        if name not in self._loaded:
            self._loaded[name] = _load(name, sources[name])
        self._loaded.move_to_end(name)
        while len(self._loaded) > CACHE_SIZE:
            self._loaded.popitem(last=False)
        return self._loaded[name]


def find_teacher(source: str | os.PathLike[str]) -> tuple[Teacher | None, Sequence[float] | None]:
    """The teacher of a student if it is available locally, and each of its layers' share of the horizon if known."""
    name, alignment = find_teacher_source(source), Path(source) / "alignment.json"
    if name is None:
        return None, None
    return Teacher(name), Alignment.load(alignment).shares if alignment.is_file() else None


def logit_lens(teacher: Teacher) -> OdeStudent:
    """A ViT without its blocks: `readout` applies its final norm and its head to any hidden state."""
    return get_ode_model(teacher.model, vit_spec=teacher.vit_spec).eval().requires_grad_(False)


def _load(name: str, source: str) -> LoadedModel:
    model = load(source).requires_grad_(False)
    if not model.depth.has_trajectory:
        teacher = Teacher(bundled_models().get(source, source))
        return LoadedModel(name, teacher=teacher, lens=logit_lens(teacher))
    return LoadedModel(name, model, *find_teacher(source))


def _is_model(config: Path) -> bool:
    """Whether a config.json describes a model; optimiser checkpoints and other folders have none, or other ones."""
    try:
        content = json.loads(config.read_text())
    except (OSError, ValueError):
        return False  # a broken file is not listed; `odevit eval FOLDER` reports what is wrong with it
    return isinstance(content, dict) and "model_type" in content
