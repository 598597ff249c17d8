"""Accuracy of a student with other solvers, steps and horizons than its own.

    python -m benchmarks.solver_settings OUT.json MODEL DATA [images=10000] [split=test] [settings=all|few|coarse]
        [cache=FOLDER]

The first images of a split, on the GPU if there is one. Each row has the top-1, the points lost against the student's
own settings with the standard error of that difference on the same images, and the share of images whose predicted
class changed: an accuracy can stay the same while predictions change. `few` has the coarsest steps of every solver, the
finest of the student's own, and twice and eight times the horizon: a fifth of the evaluations, for a CPU. `coarse` has
fewer steps than any of these, to show where accuracy collapses.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from odevit.analysis.base import frozen
from odevit.analysis.significance import paired_error
from odevit.analysis.sweep import Outcome, sweep
from odevit.core.solver_config import SolverConfig
from odevit.loading import load
from odevit.train.record import device_name, versions
from odevit.train.splits import evaluation_batches, load_run_data, resolve_device

STEPS = {
    "lie_trotter": (8, 12, 16, 24, 48, 64),
    "rk4": (12, 24, 48),
    "midpoint": (24, 48),
    "heun": (24, 48),
    "euler": (48, 96),
}
TOO_FEW = {
    "lie_trotter": (2, 3, 4, 6),
    "rk4": (3, 4, 6, 8),
    "midpoint": (6, 8, 12, 16),
    "heun": (6, 8, 12, 16),
    "euler": (12, 16, 24, 32),
}
STRETCHES = (1.5, 2, 4, 8)
STRETCHED = ("lie_trotter", "rk4")


def settings_of(own: SolverConfig, which: str = "all") -> list[SolverConfig]:
    """The own settings, every solver with its steps to the own horizon, and two of them continued beyond it."""
    if which == "coarse":
        return [own, *(own.replace(solver, steps) for solver, counts in TOO_FEW.items() for steps in counts)]
    to_horizon = [own.replace(solver, steps) for solver, counts in STEPS.items() for steps in counts]
    beyond = [own.replace(solver).stretched(stretch) for solver in STRETCHED for stretch in STRETCHES]
    if which == "few":
        to_horizon = [own.replace(solver, min(counts)) for solver, counts in STEPS.items()] + [
            own.replace(steps=max(STEPS.get(own.name, (4 * own.steps,))))
        ]
        beyond = [own.stretched(2), own.stretched(8)]
    return list(dict.fromkeys([own, *to_horizon, *beyond]))


def numbers(outcome: Outcome, own: Outcome) -> dict[str, Any]:
    lost, error = own.top1 - outcome.top1, paired_error(own.right, outcome.right)
    changed = 100 * (1 - outcome.agreement)
    keys = {key: value for key, value in outcome.to_dict().items() if key not in ("agreement", "stable")}
    return {**keys, "lost": 100 * lost, "lost_error": 100 * error, "changed": changed}


def main(out: str, model: str, data: str, *options: str) -> None:
    given = dict(option.split("=", 1) for option in options)
    images, split = int(given.get("images", 10_000)), given.get("split", "test")
    device = resolve_device("auto")
    student = load(model).to(device)
    read = load_run_data(model, data, student, given.get("cache"))
    size = 500 if device.type == "cuda" else 50
    batches = evaluation_batches(read, split, size, limit=images, device=device)
    with frozen(student):
        own, *others = sweep(student, batches, settings_of(student.solver_config, given.get("settings", "all")))
    rows = [numbers(outcome, own) for outcome in (own, *others)]
    report: dict[str, Any] = {"model": Path(model).name, "data": read.name, "split": split, "images": own.images}
    report |= {"device": device_name(device), "versions": versions()}
    Path(out).write_text(json.dumps({**report, "ways": rows}, indent=2) + "\n")
    for row in rows:
        print(
            "{solver:12s} {steps:4d} T={horizon:5g}  {top1:.4f}  lost {lost:6.2f} changed {changed:5.2f}".format(**row)
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
