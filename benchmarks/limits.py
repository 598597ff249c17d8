"""Stability limits of a student: the largest eigenvalue of df/dx along the trajectory, and the longest stable steps.

    python -m benchmarks.limits OUT.json MODEL DATA [images=16] [cache=FOLDER]

On the first images of the test split, at every step of the student's own settings: `odevit.analysis.limits`. Beside
|lambda|: the longest stable step and the smallest number of steps to the horizon, solver by solver.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

from odevit.analysis.base import frozen
from odevit.analysis.limits import measure_limits_along_path
from odevit.loading import load
from odevit.train.record import device_name, versions
from odevit.train.splits import evaluation_batches, load_run_data, resolve_device

SOLVERS = ("rk4", "midpoint", "heun", "euler")
"""Solvers with an interval of absolute stability; for splittings and exponential methods there is a rule of thumb."""


def main(out: str, model: str, data: str, *options: str) -> None:
    given = dict(option.split("=", 1) for option in options)
    images, device = int(given.get("images", 16)), resolve_device("auto")
    student = load(model).to(device)
    read = load_run_data(model, data, student, given.get("cache"))
    batch = next(iter(evaluation_batches(read, "test", images, limit=images, device=device)))
    with frozen(student):
        limits = measure_limits_along_path(student.field, student.embed(batch["pixel_values"]), student.solver_config)
    longest = {solver: limits.max_step(solver) for solver in SOLVERS}
    facts: dict[str, Any] = {"model": Path(model).name, "data": read.name, "split": "test", "images": limits.images}
    facts |= {"device": device_name(device), "versions": versions(), "radius": limits.radius, "longest_step": longest}
    facts["fewest_steps"] = {
        solver: math.ceil(student.solver_config.horizon / step) for solver, step in longest.items()
    }
    Path(out).write_text(json.dumps(facts, indent=1) + "\n")
    print(f"|lambda| {limits.radius:.2f}", facts["fewest_steps"])


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
