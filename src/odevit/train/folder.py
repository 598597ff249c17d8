"""The folder of a run: what the run wrote into it, and from which checkpoint it resumes."""

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
ASIDE = ".replaced"
"""Where a run that is being replaced is kept until the new one is trained."""


class RunFolder:
    """The folder of a run, with a manifest of every file that belongs to the run.

    Whoever adds a file (a report, an analysis) enters it: `RunFolder(folder).register("report.html").write_text(...)`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @property
    def holds_run(self) -> bool:
        """Whether there is a run or a model in it."""
        return any((self.path / name).exists() for name in (MANIFEST, RECIPE, "config.json"))

    @property
    def registered(self) -> list[str]:
        """The names of the files and folders that belong to the run."""
        if (self.path / MANIFEST).exists():
            return list(json.loads((self.path / MANIFEST).read_text()))
        return [RECIPE] if (self.path / RECIPE).exists() else []

    def register(self, name: str) -> Path:
        """Add a file or folder to the manifest, if there is a run in the folder, and return its path."""
        written = self.registered
        if written and name not in written:
            self._enter([*written, name])
        return self.path / name

    @contextmanager
    def register_written(self) -> Iterator[Path]:
        """Add everything to the manifest that is written inside this block, for functions such as `save_pretrained`."""
        before = self._times()
        yield self.path
        changed = [name for name, time in self._times().items() if before.get(name) != time]
        self._enter(list(dict.fromkeys([*self.registered, *sorted(changed)])))

    def acquire(self, recipe: Recipe) -> str:
        """Make the folder, save the recipe in it and return its text; refuse a folder that holds another run."""
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
        """Delete the run that this one replaces, once this one is trained."""
        shutil.rmtree(self.path / ASIDE, ignore_errors=True)

    def clear(self) -> None:
        """Remove the files of runs, and no others."""
        for name in [*self.registered, MANIFEST]:
            path = self.path / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def discard(self) -> None:
        """Remove a run that failed before its first step, and restore the run that it was to replace.

        If a part of it is finished, such as its teacher, both are kept until the run is started again.
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
        """Remove one file or folder of the run."""
        shutil.rmtree(self.path / name, ignore_errors=True)
        self._enter([other for other in self.registered if other != name])

    def _set_aside(self) -> None:
        """Move the files of the run aside. A run that was killed while it replaced another is deleted instead."""
        aside = self.path / ASIDE
        if aside.exists():
            self.clear()
        elif written := [name for name in (*self.registered, MANIFEST) if (self.path / name).exists()]:
            aside.mkdir()
            for name in written:
                (self.path / name).rename(aside / name)

    def _check_resumable(self, recipe: Recipe) -> None:
        """Raise unless the folder holds an unfinished run of the same recipe."""
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
        # Keys without a value are saved in neither, so look at the keys of both.
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
    """Replace a file at once, so that a killed process leaves either the old text or the new one."""
    fresh = file.with_suffix(file.suffix + ".new")
    fresh.write_text(text)
    os.replace(fresh, file)


def read_recipe(run: str | os.PathLike[str]) -> dict[str, Any]:
    """The recipe.yaml of a run with the keys of today; empty for a model without one."""
    file = Path(run) / RECIPE
    try:
        content = yaml.safe_load(file.read_text()) if file.is_file() else {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict) or not isinstance(content.get("data", {}), dict):
        raise ValueError(f"{file} is no recipe; expected the file that odevit train writes")
    return current_recipe(content)


def with_absolute_paths(content: dict[str, Any]) -> dict[str, Any]:
    """A recipe with absolute folders, so that a run can be evaluated from anywhere."""
    content["data"]["source"] = _absolute(content["data"]["source"])
    whole: dict[str, Any] = {key: _absolute(content[key]) for key in ("teacher", "init_from") if key in content}
    if "unlabelled" in content:
        whole["unlabelled"] = [*map(_absolute, content["unlabelled"])]
    return content | whole


def _absolute(name: str | None) -> str | None:
    return str(Path(name).expanduser().resolve()) if name and Path(name).expanduser().is_dir() else name


def last_complete(checkpoints: Path) -> Path | None:
    """The newest complete checkpoint-N, or None."""
    whole = {
        int(match.group(1)): path
        for path in checkpoints.glob("checkpoint-*")
        if (match := re.fullmatch(r"checkpoint-(\d+)", path.name)) and (path / COMPLETE).exists()
    }
    return whole[max(whole)] if whole else None


def _content(recipe: Recipe) -> dict[str, Any]:
    """A recipe as it is saved, without None in a model or a phase: the value of its preset or objective."""
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
