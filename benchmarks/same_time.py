"""Students of one teacher with the same images and training time: an ODE, stacked blocks, looped blocks, the paper.

    python -m benchmarks.same_time FOLDER TEACHER DATA seconds=S [knots=1,2,4] [seeds=0] [rows=NAME,...] [images=10000]
        [processes=1] [key=value ...]

equation-K is `odevit distill knots=K`. stacked-K has the same K blocks, each run once. pieces-K loops each of them over
its share of the layers, as Raptor does. These have the same losses and phases, but train with their own solver settings
only. paper is ODE-ViT's recipe, with its own loss and labels. Other keys go to every recipe. Runs are written to
FOLDER/NAME/seed-S, with their output in log.txt. Finished runs are kept, so you can stop at any time, or ask for some
`rows` first. The training time is only comparable if runs are trained one by one or all at once: `processes` is 1, or
the number of runs.

FOLDER/same_time.json has, for every row, parameters, evaluations, milliseconds measured alternately with the teacher's,
top-1, agreement with the teacher, and the accuracy with other solver settings on the first `images` test images.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from odevit import cli
from odevit.analysis.base import frozen
from odevit.analysis.sweep import sweep
from odevit.compare.executor import logged, run_all
from odevit.compare.metrics import milliseconds
from odevit.core.image_model import ImageModel
from odevit.core.solver_config import SolverConfig
from odevit.loading import load
from odevit.train.folder import RECIPE, RECORD, RunFolder
from odevit.train.record import device_name, versions
from odevit.train.splits import evaluation_batches, load_run_data, resolve_device

KINDS = {
    "equation": {},
    "stacked": {"experiment": "distill/stacked-blocks"},
    "pieces": {"experiment": "distill/pieces"},
}
PAPER = {"experiment": "paper/distill-cifar100"}
TIMED = 64
"""Images of a batch that is timed."""


def names(knots: Sequence[int]) -> list[str]:
    """Every row; stacks and pieces have at least two blocks."""
    return [f"{kind}-{k}" for kind in KINDS for k in knots if kind == "equation" or k > 1] + ["paper"]


def settings(name: str) -> dict[str, Any]:
    """The keys of `odevit distill` that a row changes."""
    kind, _, knots = name.partition("-")
    return PAPER if name == "paper" else {**KINDS[kind], "knots": int(knots)}


def other_settings(own: SolverConfig) -> dict[str, SolverConfig]:
    """Settings under which an ODE should keep its accuracy."""
    return {
        "two thirds of the steps": own.replace(steps=max(1, round(own.steps * 2 / 3))),
        "twice the steps": own.replace(steps=2 * own.steps),
        "RK4": own.replace("rk4"),
        "twice the horizon": own.stretched(2),
    }


def score_other_settings(student: Any, batches: Any) -> dict[str, dict[str, float] | None]:
    """Top-1 and the share of changed predictions, or None where a setting would skip a block."""
    ways = other_settings(student.solver_config)
    possible = {
        name: solver_config
        for name, solver_config in ways.items()
        if not student.field.grid_problems(solver_config.edges)
    }
    with frozen(student):
        outcomes = dict(zip(possible, sweep(student, batches, possible.values()), strict=True))
    return {
        name: {"top1": outcomes[name].top1, "changed": 1 - outcomes[name].agreement} if name in outcomes else None
        for name in ways
    }


@dataclass(frozen=True)
class Run:
    """A row with a seed: its folder, and the keys of `odevit distill`."""

    folder: Path
    keys: tuple[tuple[str, Any], ...]


def train_missing(
    folder: Path, rows: Sequence[str], seeds: Sequence[int], terms: Mapping[str, Any], processes: int
) -> None:
    """Train every run that is not finished; interrupted ones resume."""
    runs = [
        Run(folder / name / f"seed-{seed}", tuple({**terms, **settings(name), "seed": seed}.items()))
        for seed in seeds
        for name in rows
    ]
    left = [run for run in runs if not (run.folder / RECORD).exists()]
    for run, outcome in run_all(left, processes, distill_run):
        print(run.folder, outcome.get("failure", "is finished"), flush=True)


def distill_run(run: Run, quiet: bool = False) -> dict[str, Any]:
    """Train one run; its output goes to its log."""
    with logged(RunFolder(run.folder), quiet):
        cli.distill(**dict(run.keys), out=str(run.folder), resume=(run.folder / RECIPE).exists())
    return {}


def measure_runs(folder: Path, teacher: str, data: str, images: int, cache: str | None) -> Iterator[dict[str, Any]]:
    """Rows of the finished runs, the teacher first."""
    device = resolve_device("auto")
    runs: dict[str, list[Path]] = {}
    for path in sorted(folder.glob(f"*/seed-*/{RECORD}")):
        runs.setdefault(path.parent.parent.name, []).append(path.parent)
    if not runs:
        sys.exit(f"{folder} has no finished run; leave out rows= to make them")
    records = {name: [json.loads((run / RECORD).read_text()) for run in found] for name, found in runs.items()}
    models: dict[str, ImageModel] = {"teacher": load(teacher).float().to(device).eval()}
    models |= {name: load(found[0]).to(device).eval() for name, found in runs.items()}
    read = load_run_data(teacher, data, models["teacher"], cache)
    batches = list(evaluation_batches(read, "test", TIMED, limit=images, device=device))
    times = milliseconds(models, batches[0]["pixel_values"])
    known = next(iter(records.values()))[0]["teacher"]
    yield {
        "name": "teacher",
        **{key: known[key] for key in ("params", "nfe", "top1")},
        "milliseconds": times["teacher"],
    }
    for name, found in runs.items():
        yield {
            "name": name,
            **{key: records[name][0][key] for key in ("params", "nfe", "labels", "device")},
            "milliseconds": times[name],
            **{key: statistics.mean(record[key] for record in records[name]) for key in ("top1", "agreement")},
            "seeds": [
                {
                    **{key: record["seeds"][0][key] for key in ("seed", "top1", "agreement", "seconds")},
                    "updates": last_update(run),
                    "ways": score_other_settings(load(run).to(device).eval(), batches),
                }
                for run, record in zip(found, records[name], strict=True)
            ],
        }


def last_update(run: Path) -> int:
    """The number of updates of a run."""
    return int(json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["step"])


def main(folder: str, teacher: str, data: str, *options: str) -> None:
    given = dict(option.split("=", 1) for option in options)
    seconds, images = float(given.pop("seconds")), int(given.pop("images", 10_000))
    knots, seeds = (
        [int(n) for n in given.pop(key, more).split(",")] for key, more in (("knots", "1,2,4"), ("seeds", "0"))
    )
    processes = int(given.pop("processes", 1))
    rows = [name for name in given.pop("rows", ",".join(names(knots))).split(",") if name]
    terms = {"teacher": teacher, "data": data, "train.seconds": seconds, **given}
    train_missing(Path(folder), rows, seeds, terms, processes)
    found = list(measure_runs(Path(folder), teacher, data, images, given.get("cache")))
    report = {
        "command": f"python -m benchmarks.same_time FOLDER TEACHER DATA {' '.join(options)}",
        "seconds": seconds,
        "images": images,
        "device": device_name(resolve_device("auto")),
        "versions": versions(),
        "rows": found,
    }
    (Path(folder) / "same_time.json").write_text(json.dumps(report, indent=1) + "\n")
    for row in found:
        print("{name:12s} {params:10,}  nfe {nfe:3}  {milliseconds:.3f} ms  top-1 {top1:.2%}".format(**row))


if __name__ == "__main__":
    main(*sys.argv[1:])
