"""out/: whose it is, what a run wrote into it, and where a run may continue in it."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from odevit.train.recipe import Recipe

MANIFEST = "manifest.json"
RECIPE, RECORD, CHECKPOINTS = "recipe.yaml", "record.json", "checkpoints"
COMPLETE = "complete"
"""An empty file, written last into a checkpoint. One without it was interrupted and is not resumed from."""
LEGACY = (
    *("model.safetensors", "config.json", "preprocessor_config.json", "encoder.json", "base.json", "base"),
    *("recipe.yaml", "metrics.jsonl", "record.json", "README.md", "curves.png", "tensorboard"),
    *("alignment.json", "comparison.json", "bound.jsonl", "bound.png", "teacher", "scratch"),
    *("report.html", "analysis"),
    *("checkpoints", "best", "best.new"),
)
"""What versions without a manifest wrote; nothing is ever added here."""


class RunFolder:
    """The folder of a run, with a manifest of everything that was written into it on behalf of the run.

    Whoever adds a file (a report, an analysis) enters it: `RunFolder(folder).own("report.html").write_text(...)`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @property
    def holds_run(self) -> bool:
        """Whether there is a run or a model in it."""
        return any((self.path / name).exists() for name in (MANIFEST, RECIPE, "config.json"))

    @property
    def written(self) -> list[str]:
        """What was written here on behalf of a run."""
        if (self.path / MANIFEST).exists():
            return list(json.loads((self.path / MANIFEST).read_text()))
        return [name for name in LEGACY if (self.path / name).exists()] if (self.path / RECIPE).exists() else []

    def own(self, name: str) -> Path:
        """The path of a file or folder that belongs to the run. In a folder that holds no run, merely the path."""
        written = self.written
        if written and name not in written:
            self._enter([*written, name])
        return self.path / name

    @contextmanager
    def recording(self) -> Iterator[Path]:
        """Enter whatever is written inside this block by someone who does not say what, such as `save_pretrained`."""
        before = self._times()
        yield self.path
        changed = [name for name, time in self._times().items() if before.get(name) != time]
        self._enter(list(dict.fromkeys([*self.written, *sorted(changed)])))

    def claim(self, recipe: Recipe) -> str:
        """Make the folder and save the recipe, whose text is given back; refuse a folder that holds another run."""
        if recipe.resume:
            self._check_resumable(recipe)
        elif self.holds_run and not recipe.overwrite:
            raise ValueError(
                f"{self.path} already holds a run; pass resume=true to go on with it, overwrite=true to replace it, "
                "or another out="
            )
        elif recipe.overwrite:
            self.clear()
        self.path.mkdir(parents=True, exist_ok=True)
        self._enter(list(dict.fromkeys([*self.written, RECIPE])))
        # A field of the model that is None is the preset's: left out.
        content = asdict(recipe)
        content["model"] = {key: value for key, value in content["model"].items() if value is not None}
        text = yaml.safe_dump(content, sort_keys=False)
        (self.path / RECIPE).write_text(text)
        return text

    def clear(self) -> None:
        """Remove what runs wrote, and nothing else: the folder may hold other people's files."""
        for name in [*self.written, MANIFEST]:
            path = self.path / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def remove(self, name: str) -> None:
        """Remove one thing that the run wrote."""
        shutil.rmtree(self.path / name, ignore_errors=True)
        self._enter([other for other in self.written if other != name])

    def _check_resumable(self, recipe: Recipe) -> None:
        """A resumed run is the same run, and not finished."""
        if not (self.path / RECIPE).exists():
            raise ValueError(f"resume=true, but {self.path} holds no run; give its folder as out=, or drop resume")
        if (self.path / RECORD).exists():
            raise ValueError(
                f"resume=true, but the run in {self.path} is finished; evaluate it, or train with another out="
            )
        if not (self.path / MANIFEST).exists():
            raise ValueError(
                f"resume=true, but the run in {self.path} was begun by an earlier version of odevit; finish it there, "
                "or start again with overwrite=true"
            )
        free = {"out", "resume", "overwrite", "device", "loggers"}
        earlier = _flat(yaml.safe_load((self.path / RECIPE).read_text()))
        now = _flat(yaml.safe_load(yaml.safe_dump(asdict(recipe))))
        changed = [key for key, value in now.items() if key not in free and value != earlier.get(key)]
        if changed:
            raise ValueError(
                f"resume=true continues the recipe of {self.path}, but {', '.join(changed)} changed; "
                "give the same settings as before, or start a new run with init_from="
            )

    def _enter(self, names: list[str]) -> None:
        (self.path / MANIFEST).write_text(json.dumps(names, indent=1) + "\n")

    def _times(self) -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in self.path.iterdir() if path.name != MANIFEST}


def last_complete(checkpoints: Path) -> Path | None:
    """The newest whole checkpoint-N, or None."""
    whole = {
        int(match.group(1)): path
        for path in checkpoints.glob("checkpoint-*")
        if (match := re.fullmatch(r"checkpoint-(\d+)", path.name)) and (path / COMPLETE).exists()
    }
    return whole[max(whole)] if whole else None


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    """{"train": {"epochs": 1}} -> {"train.epochs": 1}, one level deep."""
    return {
        f"{key}.{inner}" if inner else key: value[inner] if inner else value
        for key, value in values.items()
        for inner in (value if isinstance(value, dict) else [""])
    }
