"""out/: whose it is, and whether a run may go on in it."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path

import yaml

from odevit.train.recipe import Recipe

OWN = (
    *("model.safetensors", "config.json", "preprocessor_config.json", "encoder.json", "base.json", "base"),
    *("recipe.yaml", "metrics.jsonl", "record.json", "README.md", "curves.png", "tensorboard"),
    *("alignment.json", "comparison.json", "bound.jsonl", "bound.png", "teacher", "scratch"),
    *("report.html", "analysis"),
    *("checkpoints", "best", "best.new"),
)
"""Everything that runs write into their folder."""


def claim(folder: Path, recipe: Recipe) -> None:
    """Make the folder, or refuse one that holds a run."""
    holds_run = (folder / "recipe.yaml").exists() or (folder / "config.json").exists()
    if recipe.resume:
        if not holds_run:
            raise ValueError(f"resume=true, but {folder} holds no run; give its folder as out=, or drop resume")
        if (folder / "record.json").exists():
            raise ValueError(
                f"resume=true, but the run in {folder} is finished; evaluate it, or train with another out="
            )
        _refuse_changed_recipe(folder, recipe)
    elif holds_run and not recipe.overwrite:
        raise ValueError(
            f"{folder} already holds a run; pass resume=true to go on with it, overwrite=true to replace it, "
            "or another out="
        )
    elif recipe.overwrite:
        clear(folder)
    folder.mkdir(parents=True, exist_ok=True)


def clear(folder: Path) -> None:
    """Remove what a run wrote, and nothing else: someone may have named a folder with more in it."""
    for name in OWN:
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _refuse_changed_recipe(folder: Path, recipe: Recipe) -> None:
    """A resumed run is the same run."""
    free = {"out", "resume", "overwrite", "device", "loggers"}
    before = yaml.safe_load((folder / "recipe.yaml").read_text())
    now = yaml.safe_load(yaml.safe_dump(asdict(recipe)))
    changed = [
        f"{key}{'.' + inner if inner else ''}"
        for key in now
        if key not in free
        for inner in (now[key] if isinstance(now[key], dict) else [""])
        if (now[key][inner] if inner else now[key]) != (before[key].get(inner) if inner else before.get(key))
    ]
    if changed:
        raise ValueError(
            f"resume=true goes on with the recipe of {folder}, but {', '.join(changed)} changed; "
            "give the same settings as before, or start a new run with init_from="
        )


def write_recipe(folder: Path, recipe: Recipe) -> str:
    """Save the resolved recipe and give back its text. What is as the preset has it, None, is left out."""
    content = asdict(recipe)
    content["model"] = {key: value for key, value in content["model"].items() if value is not None}
    text = yaml.safe_dump(content, sort_keys=False)
    (folder / "recipe.yaml").write_text(text)
    return text
