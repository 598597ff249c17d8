"""out/ -> runs, results and terms of earlier calls: what joins a comparison, and what was made on other terms."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from odevit.compare.executor import LOG, MEASURES, result_of
from odevit.compare.plan import Entry, Plan, all_systems
from odevit.compare.report import JSON, PAGE, PICTURE, TABLE
from odevit.errors import shortened
from odevit.train.compose import expand_depth
from odevit.train.folder import RECORD, RunFolder, read_recipe

Results = dict[str, dict[int, dict[str, Any]]]
"""system -> seed -> what came of it."""
RUN = re.compile(r"seed-(0|[1-9][0-9]*)")
FREE = ("out", "resume", "overwrite", "data.cache")
"""Keys of a recipe that are no terms: where things lie, and how often it was interrupted."""
FOLDERS = ("data.source", "init_from", "teacher")
"""Keys of a recipe that may be folders, which it saves with their whole paths."""


def read_old(folder: Path) -> dict[str, Any]:
    """The comparison that a folder holds; nothing where it holds none."""
    file = folder / JSON
    try:
        content = json.loads(file.read_text()) if file.exists() else None
    except ValueError as error:
        raise ValueError(f"{file} cannot be read ({error}); remove it: the runs beside it are kept") from error
    return content if isinstance(content, dict) else {}


def runs_in(folder: Path) -> Iterator[tuple[str, int, Path]]:
    """System, seed and folder of every run of a comparison; what has any other name is somebody else's."""
    known = all_systems()
    for path in sorted(folder.glob("*/seed-*")):
        if path.parent.name in known and (seed := RUN.fullmatch(path.name)) and path.is_dir():
            yield path.parent.name, int(seed[1]), path


def recalled(folder: Path, old: Mapping[str, Any]) -> Results:
    """What came of earlier calls, whoever is asked for now, in the order of their table: results, and failures."""
    known = all_systems()
    results: Results = {
        row["system"]: {seed["seed"]: {"failure": seed["failure"]} for seed in row["seeds"] if "failure" in seed}
        for row in old.get("rows", [])
        if row["system"] in known
    }
    for system, seed, path in runs_in(folder):
        if all((path / name).exists() for name in (RECORD, MEASURES)):
            results.setdefault(system, {})[seed] = result_of(path)
    return {system: seeds for system, seeds in results.items() if seeds}


def clear(folder: Path) -> None:
    """Remove what a comparison wrote, whichever systems it had, and nothing else."""
    for _, _, path in runs_in(folder):
        run = RunFolder(path)
        for name in (MEASURES, LOG):  # a run that was copied without its manifest has these nevertheless
            run.register(name)
        run.clear()
    for name in (JSON, TABLE, PICTURE, PAGE):
        (folder / name).unlink(missing_ok=True)


def on_other_terms(plan: Plan) -> list[str]:
    """A sentence for each run of the plan's systems that is there and is not the one that the plan would train."""
    return [
        refusal(f"{path} holds a run", changed)
        for system, seed, path in runs_in(plan.out)
        if system in plan.changes and (changed := changed_since(path, plan.entry(system, seed)))
    ]


def changed_since(run: Path, entry: Entry) -> list[str]:
    """What a run was trained and measured on otherwise than its entry is; what it does not tell counts as the same.

    A model saves what it was given, and nothing for the rest: there, what is not told is told to be nothing.
    """
    recipe = read_recipe(run)
    old, new = told(recipe), told(asdict(entry.recipe()))
    if (run / MEASURES).exists():
        old |= {"images": json.loads((run / MEASURES).read_text()).get("images", entry.images)}
        new |= {"images": entry.images}
    of_models = {key for key in {*old, *new} if key.startswith("model.")} if recipe else set()
    return differences(old, {key: new.get(key) for key in sorted({*old} & {*new} | of_models)})


def told(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The terms that a recipe tells; folders by their names, since they move."""
    terms = {key: value for key, value in flat(recipe) if key not in FREE}
    return terms | {key: Path(terms[key]).name for key in FOLDERS if terms.get(key)}


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """{"train": {"epochs": 1}} -> ("train.epochs", 1), however deep."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def terms_of(old: Mapping[str, Any]) -> dict[str, Any]:
    """The terms of an earlier comparison, in the words of now."""
    settings = old.get("settings", {})
    return {**settings, "words": expand_depth(settings.get("words", []))}


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What two sets of terms disagree in: `parameters: 1000, now 2000`."""
    return [f"{key}: {old.get(key)}, now {value}" for key, value in new.items() if old.get(key) != value]


def refusal(holds: str, changed: Sequence[str]) -> str:
    """Why what a folder holds cannot be joined, and what to type."""
    return (
        f"{holds} on other terms ({shortened(changed)}); give the same, another out=, or overwrite=true to begin anew"
    )
