"""out/: whose it is, what a run wrote into it, and where a run may continue in it."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from odevit.errors import ConfigError
from odevit.train.recipe import Recipe
from odevit.train.recipe_keys import current_recipe, removed_problems

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


ASIDE = ".replaced"
"""Where a run that is being replaced waits until the new one has weights to offer."""


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
    def registered(self) -> list[str]:
        """What was written here on behalf of a run."""
        if (self.path / MANIFEST).exists():
            return list(json.loads((self.path / MANIFEST).read_text()))
        return [name for name in LEGACY if (self.path / name).exists()] if (self.path / RECIPE).exists() else []

    def register(self, name: str) -> Path:
        """The path of a file or folder that belongs to the run. In a folder that holds no run, merely the path."""
        written = self.registered
        if written and name not in written:
            self._enter([*written, name])
        return self.path / name

    @contextmanager
    def register_written(self) -> Iterator[Path]:
        """Enter whatever is written inside this block by someone who does not say what, such as `save_pretrained`."""
        before = self._times()
        yield self.path
        changed = [name for name, time in self._times().items() if before.get(name) != time]
        self._enter(list(dict.fromkeys([*self.registered, *sorted(changed)])))

    def acquire(self, recipe: Recipe) -> str:
        """Make the folder and save the recipe, whose text is given back; refuse a folder that holds another run."""
        if recipe.resume:
            self._check_resumable(recipe)
        elif self.holds_run and not recipe.overwrite:
            raise ValueError(
                f"{self.path} already holds a run; pass resume=true to go on with it, overwrite=true to replace it, "
                "or another out="
            )
        elif recipe.overwrite:
            self._set_aside()
        self.path.mkdir(parents=True, exist_ok=True)
        self._enter(list(dict.fromkeys([*self.registered, RECIPE])))
        text = yaml.safe_dump(_content(recipe), sort_keys=False)
        _write(self.path / RECIPE, text)
        return text

    def remove_replaced(self) -> None:
        """Let go of the run that this one replaces: it has been trained."""
        shutil.rmtree(self.path / ASIDE, ignore_errors=True)

    def clear(self) -> None:
        """Remove what runs wrote, and nothing else: the folder may hold other people's files."""
        for name in [*self.registered, MANIFEST]:
            path = self.path / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def discard(self) -> None:
        """Leave nothing of a run that failed before its first step, unless a part of it is finished: its teacher.

        What it was going to replace is back in its place, or waits until the run is resumed or typed again.
        """
        if any(path for path in self.path.glob(f"*/{RECORD}") if path.parent.name != ASIDE):
            return
        self.clear()
        with suppress(FileNotFoundError):
            for old in (self.path / ASIDE).iterdir():
                old.rename(self.path / old.name)
            (self.path / ASIDE).rmdir()
        with suppress(OSError):  # other people's files are in it, or the run that was there before
            self.path.rmdir()

    def remove(self, name: str) -> None:
        """Remove one thing that the run wrote."""
        shutil.rmtree(self.path / name, ignore_errors=True)
        self._enter([other for other in self.registered if other != name])

    def _set_aside(self) -> None:
        """Move what runs wrote out of the way. A run that was killed while it replaced another does not count."""
        aside = self.path / ASIDE
        if aside.exists():
            self.clear()
        elif written := [name for name in (*self.registered, MANIFEST) if (self.path / name).exists()]:
            aside.mkdir()
            for name in written:
                (self.path / name).rename(aside / name)

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
        free = {"out", "resume", "overwrite", "device", "loggers", "data.skip_unreadable"}
        content = read_recipe(self.path)
        if removed := removed_problems(content):
            raise ConfigError(f"{self.path / RECIPE}", removed)
        earlier = _flat(with_absolute_paths(content))
        now = _flat(yaml.safe_load(yaml.safe_dump(_content(recipe))))
        # What is left to others is in neither, so that both are asked: a key may have been forgotten, or be new.
        changed = [key for key in {**earlier, **now} if key not in free and now.get(key) != earlier.get(key)]
        if changed:
            raise ValueError(
                f"resume=true continues the recipe of {self.path}, but {', '.join(changed)} changed; "
                "give the same settings as before, or start a new run with another out="
            )

    def _enter(self, names: list[str]) -> None:
        _write(self.path / MANIFEST, json.dumps(names, indent=1) + "\n")

    def _times(self) -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in self.path.iterdir() if path.name != MANIFEST}


def _write(file: Path, text: str) -> None:
    """The whole text or what was there before, whenever a process is killed: without these files a run is lost."""
    fresh = file.with_suffix(file.suffix + ".new")
    fresh.write_text(text)
    os.replace(fresh, file)


def read_recipe(run: str | os.PathLike[str]) -> dict[str, Any]:
    """What the recipe.yaml of a run says; nothing for a model that has none."""
    file = Path(run) / RECIPE
    try:
        content = yaml.safe_load(file.read_text()) if file.is_file() else {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict) or not isinstance(content.get("data", {}), dict):
        raise ValueError(f"{file} is no recipe; expected what odevit train wrote there")
    return current_recipe(content)


def with_absolute_paths(content: dict[str, Any]) -> dict[str, Any]:
    """A recipe's content with the folders it names made absolute: a run can be evaluated from anywhere."""
    content["data"]["source"] = _absolute(content["data"]["source"])
    whole: dict[str, Any] = {key: _absolute(content[key]) for key in ("teacher", "init_from") if key in content}
    if "unlabelled" in content:
        whole["unlabelled"] = [*map(_absolute, content["unlabelled"])]
    return content | whole


def _absolute(name: str | None) -> str | None:
    return str(Path(name).expanduser().resolve()) if name and Path(name).expanduser().is_dir() else name


def last_complete(checkpoints: Path) -> Path | None:
    """The newest whole checkpoint-N, or None."""
    whole = {
        int(match.group(1)): path
        for path in checkpoints.glob("checkpoint-*")
        if (match := re.fullmatch(r"checkpoint-(\d+)", path.name)) and (path / COMPLETE).exists()
    }
    return whole[max(whole)] if whole else None


def _content(recipe: Recipe) -> dict[str, Any]:
    """A recipe as it is saved: what is None in a model or a phase is somebody else's value, and left out."""
    content = with_absolute_paths(asdict(recipe))
    content |= {key: _given(content[key]) for key in ("model", "phases") if key in content}
    return content


def _given(value: Any) -> Any:
    return {k: _given(v) for k, v in value.items() if v is not None} if isinstance(value, dict) else value


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    """{"train": {"epochs": 1}} -> {"train.epochs": 1}, one level deep."""
    return {
        f"{key}.{inner}" if inner else key: value[inner] if inner else value
        for key, value in values.items()
        for inner in (value if isinstance(value, dict) else [""])
    }
