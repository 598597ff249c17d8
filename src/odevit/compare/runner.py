"""systems x seeds -> one folder: the same data, budget, updates and batches; table, figure and page."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from odevit.compare.executor import LOG, MEASURES, WEIGHTS, Result, finished, read_result, run_all
from odevit.compare.metrics import milliseconds
from odevit.compare.plan import Plan, PlannedRun, Settings, all_systems
from odevit.compare.report import JSON, PAGE, PICTURE, TABLE, make_row, write_numbers, write_pictures
from odevit.core.image_model import ImageModel
from odevit.errors import ConfigError, Expected, integer, real, shortened, unknown_name, writable
from odevit.train.folder import RECORD, RunFolder, read_recipe
from odevit.train.recipe import device_problems
from odevit.train.recipe_keys import word
from odevit.train.record import device_name, versions
from odevit.train.splits import evaluation_batches, resolve_device

TIMED_IMAGES = {"cpu": 64, "cuda": 512}
"""The batch that is timed."""
REFERENCE = "vit"
"""Times are relative to this system, or to the first one if it does not take part."""
MAX_PARAMETERS = 10**9
"""Finding the width that meets a larger budget takes long."""
NOT_EMPTY = Expected("at least one, several separated by commas", bool)
LOCATIONS = ("out", "resume", "overwrite", "cache", "data.cache")
"""Keys of a recipe that a resumed comparison may change."""
FOLDER_KEYS = ("data.source", "init_from", "teacher")
"""Keys whose folders may have moved: only their names are compared."""
Results = dict[str, dict[int, Result]]
"""system -> seed -> result."""


def compare(
    *,
    systems: Sequence[str] | str = (),
    seeds: Sequence[int] | int = (0, 1, 2),
    data: str = "digits",
    parameters: int | None = None,
    updates: int | None = None,
    epochs: int | None = None,
    seconds: float | None = None,
    out: str | os.PathLike[str] = "runs/comparison",
    images: int = 512,
    processes: int = 1,
    device: str = "auto",
    overwrite: bool = False,
    overrides: tuple[str, ...] = (),
) -> Path:
    """Train systems on the same data with the same budget, updates, batches and seeds, and compare them on one page.

    The folder gets comparison.json, comparison.md, comparison.png and comparison.html, and one run folder for each
    system and seed. Run it again to resume; systems and seeds can be added. Failures are shown in their row. Keys of a
    recipe (train.batch_size=64, model=small, experiment=fast/cifar10, ...) apply to every system.

    Args:
        systems: names from `odevit train system=?`; all of them unless given.
        seeds: of the first weights, the order of the images and their augmentation.
        data: a name, a folder or a hub id.
        parameters: of every system, met by changing its width and MLP; as many as the recipe's own model unless given.
        updates, epochs, seconds: how long each is trained, one of the three; as the recipe says unless given.
        out: the folder.
        images: the number of test images for everything but accuracy, counted from the first.
        processes: how many systems are trained at a time; times are then unreliable.
        device: `auto`, `cpu` or `cuda`.
        overwrite: start over if `out` holds a comparison.
        overrides: keys of a recipe, for every system: ("train.batch_size=64",).
    """
    names, numbers = _as_list(systems) or list(all_systems()), _as_list(seeds)
    length = {"updates": updates, "epochs": epochs, "seconds": seconds}
    given = {key: value for key, value in length.items() if value is not None}
    settings, folder = Settings(data, tuple(overrides), parameters, given, images, device), Path(out)
    check(settings, names, numbers, folder, processes)
    old = {} if overwrite else read_comparison(folder)
    found: Results = {} if overwrite else read_results(folder, old)
    # With the systems and seeds of earlier calls, which keep their rows.
    plan = Plan(
        settings, [*found, *names], [*numbers, *(seed for results in found.values() for seed in results)], folder
    )
    if overwrite:
        clear(folder)
    elif problems := changed_settings(plan):
        raise ConfigError("the comparison", problems)
    size = f"{len(plan.systems)} systems x {len(plan.seeds)} seeds, {plan.budget:,} parameters each"
    _print(*plan.said, f"{size} -> {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    board = Scoreboard(plan, processes, found, old)
    asked = [run for run in plan.runs() if run.system in names and run.seed in numbers]
    left = [run for run in asked if found.get(run.system, {}).get(run.seed, {"failure": True})["failure"]]
    if len(left) < len(asked):
        _print(f"{len(asked) - len(left)} of {len(asked)} runs are finished already")
    try:
        board.write()
        for count, (run, result) in enumerate(run_all(left, processes), start=1):
            board.results[run.system][run.seed] = result
            board.write()
            rest = (time.perf_counter() - board.began) / count * (len(left) - count)
            outcome = f"failed: {result['failure']}" if result["failure"] else f"{result['top1']:.2%}"
            remaining = f"  (about {rest:.0f} s left)" if rest else ""
            _print(f"{count} of {len(left)}  {run.system}, seed {run.seed}: {outcome}{remaining}")
        board.measure_times()
        board.write()
    finally:  # an interrupted comparison has a page, too
        write_pictures(folder)
    return folder


def check(settings: Settings, systems: Sequence[str], seeds: Sequence[int], folder: Path, processes: int) -> None:
    """Raise one error with all problems of the arguments."""
    known = all_systems()
    problems = [
        *(f"systems: {unknown_name('system', name, known)}" for name in systems if name not in known),
        *NOT_EMPTY.problem("seeds", seeds),
        *(problem for seed in seeds for problem in integer(0, 2**32 - 1).problem("seeds", seed)),
        *integer(1, MAX_PARAMETERS, optional=True).problem("parameters", settings.parameters),
        *integer(1).problem("images", settings.images),
        *integer(1, 64).problem("processes", processes),
        *device_problems(settings.device),
        *writable("out", folder, folder=True),
    ]
    for key, value in settings.length.items():
        problems += (real(above=0) if key == "seconds" else integer(1)).problem(key, value)
    if len(settings.length) > 1:
        problems.append(f"{' and '.join(settings.length)} were given; expected one of updates=, epochs= and seconds=")
    if problems:
        raise ConfigError("the comparison", problems)


class Scoreboard:
    """The results so far, and the comparison.json that they make.

    Args:
        found, old: results and comparison.json of earlier calls.
    """

    def __init__(self, plan: Plan, processes: int, found: Results, old: Mapping[str, Any]) -> None:
        self.plan, self.processes, self.descriptions = plan, processes, all_systems()
        self.results: Results = {system: dict(found.get(system, {})) for system in plan.systems}
        self.milliseconds: dict[str, float] = {}
        self.began, self.before = time.perf_counter(), old.get("seconds", {}).get("total", 0.0) if found else 0.0

    def measure_times(self) -> None:
        """Milliseconds of the first finished seed of each system whose weights are there."""
        device, models = resolve_device(self.plan.settings.device), dict[str, ImageModel]()
        size = TIMED_IMAGES[device.type]
        batch = next(iter(evaluation_batches(self.plan.data, "test", size, limit=size, device=device)))
        for system in self.plan.changes:
            done = sorted(seed for seed, result in self.results[system].items() if not result["failure"])
            recipe = self.plan.run(system, done[0]).recipe() if done else None
            if recipe and (recipe.folder / WEIGHTS).exists():
                models[system] = finished(recipe).network
        self.milliseconds = milliseconds(models, batch["pixel_values"])

    def write(self) -> None:
        plan, settings = self.plan, self.plan.settings
        rows = [self.row(system) for system in plan.systems]
        hashes = {(seed["seed"], seed["batches"]) for row in rows for seed in row["seeds"] if "batches" in seed}
        keys = {
            "systems": ",".join(plan.systems),
            "seeds": ",".join(map(str, plan.seeds)),
            "data": settings.data,
            "parameters": settings.parameters,
            **settings.length,
            "images": settings.images,
            "processes": self.processes,
            "device": settings.device,
            "out": plan.out,
        }
        typed = [f"{key}={word(value)}" for key, value in keys.items() if value is not None]
        comparison = {
            "command": shlex.join(["odevit", "compare", *typed, *settings.words]),
            "settings": settings.to_dict(),
            "seeds": plan.seeds,
            "parameters": plan.budget,
            "classes": plan.data.num_classes,
            "test_images": len(plan.data.test),
            "same_batches": len(hashes) == len({seed for seed, _ in hashes}),
            "reference": self.reference,
            "memory_how": next((row["memory"]["how"] for row in rows if "memory" in row), "not measured"),
            "processes": self.processes,
            "device": device_name(resolve_device(settings.device)),
            "versions": versions(),
            "seconds": {
                "total": self.before + time.perf_counter() - self.began,
                "processor": time.process_time(),
            },
            "rows": rows,
        }
        write_numbers(plan.out, comparison)

    @property
    def reference(self) -> str:
        return REFERENCE if REFERENCE in self.milliseconds else next(iter(self.milliseconds), "")

    def row(self, system: str) -> dict[str, Any]:
        plan, results = self.plan, dict(sorted(self.results[system].items()))
        if system in plan.failures:
            results = {seed: {"failure": plan.failures[system]} for seed in plan.seeds}
        fields: dict[str, Any] = {"about": self.descriptions[system], "changed": plan.changes.get(system)}
        fields["asked"] = len(plan.seeds)
        if system in self.milliseconds:
            taken = self.milliseconds[system]
            fields |= {"milliseconds": taken, "relative": taken / self.milliseconds[self.reference]}
        return make_row(system, results, **fields)


def read_comparison(folder: Path) -> dict[str, Any]:
    """The comparison.json of a folder; {} if there is none."""
    file = folder / JSON
    try:
        content = json.loads(file.read_text()) if file.exists() else None
    except ValueError as error:
        raise ValueError(f"{file} cannot be read ({error}); remove it: the runs beside it are kept") from error
    return content if isinstance(content, dict) else {}


def run_folders(folder: Path) -> Iterator[tuple[str, int, Path]]:
    """System, seed and folder of every run of a comparison; folders with other names are not ours."""
    known = all_systems()
    for path in sorted(folder.glob("*/seed-*")):
        seed = re.fullmatch(r"seed-(0|[1-9][0-9]*)", path.name)
        if path.parent.name in known and seed and path.is_dir():
            yield path.parent.name, int(seed[1]), path


def read_results(folder: Path, old: Mapping[str, Any]) -> Results:
    """Results and failures of earlier calls, in the order of their table."""
    known, results = all_systems(), Results()
    for row in old.get("rows", []):
        if row["system"] in known:
            results[row["system"]] = {
                seed["seed"]: {"failure": seed["failure"]} for seed in row["seeds"] if "failure" in seed
            }
    for system, seed, path in run_folders(folder):
        if all((path / name).exists() for name in (RECORD, MEASURES)):
            results.setdefault(system, {})[seed] = read_result(path)
    return {system: seeds for system, seeds in results.items() if seeds}


def clear(folder: Path) -> None:
    """Remove everything that a comparison wrote, and nothing else."""
    for _, _, path in run_folders(folder):
        run = RunFolder(path)
        for name in (MEASURES, LOG):  # a run that was copied without its manifest has these nevertheless
            run.register(name)
        run.clear()
    for name in (JSON, TABLE, PICTURE, PAGE):
        (folder / name).unlink(missing_ok=True)


def changed_settings(plan: Plan) -> list[str]:
    """A sentence for every run in the folder that was made with other settings than the plan's."""
    return [
        f"{path} holds a run with other settings ({shortened(changes)}); give the same, another out=, or "
        "overwrite=true to start over"
        for system, seed, path in run_folders(plan.out)
        if system in plan.changes and (changes := differences(path, plan.run(system, seed)))
    ]


def differences(path: Path, planned: PlannedRun) -> list[str]:
    """What a run was trained and measured with, where the plan has something else: `train.epochs: 30, now 31`.

    A key that a recipe does not have counts as equal, except for those of the model, which are saved only if given.
    """
    recipe = read_recipe(path)
    old, new = _flatten(recipe), _flatten(asdict(planned.recipe()))
    if (path / MEASURES).exists():
        old["images"] = json.loads((path / MEASURES).read_text()).get("images", planned.images)
        new["images"] = planned.images
    keys = {key for key in {*old, *new} if (key in old and key in new) or (recipe and key.startswith("model."))}
    return [f"{key}: {old.get(key)}, now {new.get(key)}" for key in sorted(keys) if old.get(key) != new.get(key)]


def _flatten(recipe: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"train": {"epochs": 1}} -> {"train.epochs": 1}, without `LOCATIONS`."""
    flat: dict[str, Any] = {}
    for name, value in recipe.items():
        key = prefix + name
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{key}.")
        elif key not in LOCATIONS:
            flat[key] = Path(value).name if key in FOLDER_KEYS and value else value
    return flat


def _as_list(value: Any) -> list[Any]:
    return [value] if isinstance(value, str | int) else list(value)


def _print(*lines: str) -> None:
    print(*lines, sep="\n", file=sys.stderr, flush=True)
