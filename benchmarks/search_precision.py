"""Searches for rest points in single precision, in bf16, and with only the field in bf16.

    python -m benchmarks.search_precision OUT.json RUN DATA [images=256] [cache=FOLDER]

RUN is a deep equilibrium model trained on DATA, with its weights. Each row has the evaluations of a search, its
residuals, the distance from the rest point of single precision, and the share of searches that used up their
evaluations.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import torch

from odevit.compare.executor import finished
from odevit.core.solution import Solution
from odevit.solvers.fixed_point import SEARCHES
from odevit.systems.equilibrium import EquilibriumDepth
from odevit.train.compose import compose_recipe
from odevit.train.record import device_name, versions
from odevit.train.splits import evaluation_batches


@torch.no_grad()
def main(out: str, run: str, data: str, *options: str) -> None:
    given = dict(option.split("=", 1) for option in options)
    _, _, *words = shlex.split(json.loads((Path(run) / "record.json").read_text())["command"])
    words += [f"data.source={data}", f"cache={given.get('cache', 'null')}", f"out={run}", "device=auto"]
    task = finished(compose_recipe(words))
    model, device = task.network, task.process.device
    depth = model.depth
    if not isinstance(depth, EquilibriumDepth):
        sys.exit(f"{run} has depth {type(depth).__name__}; expected a deep equilibrium")
    images = int(given.get("images", 256))
    (batch,) = evaluation_batches(task.data, "test", images, limit=images, device=device)
    # Without its decorators `autocast_map_only` and `no_grad`, a search computes in the precision of its caller.
    SEARCHES.register("all mixed")(SEARCHES[depth.search].__wrapped__.__wrapped__)
    ours = depth.search

    def found(search: str, mixed: bool) -> Solution:
        depth.search = search
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=mixed):
            return model.follow(model.embed(batch["pixel_values"]))

    ways = {
        "single precision": found(ours, mixed=False),
        "field and search in bf16": found("all mixed", mixed=True),
        "field in bf16": found(ours, mixed=True),
    }
    exact, rows = ways["single precision"].state.flatten(1), []
    for name, solution in ways.items():
        spent, residual = solution.evaluations.double(), solution.residual
        away = (solution.state.flatten(1) - exact).norm(dim=1) / exact.norm(dim=1)
        approach = solution.stats.nfe - solution.stats.steps  # the evaluations before the search; a step of it is one
        row = {
            "precision": name,
            "evaluations": spent.mean().item(),
            "used_up": (spent - approach >= depth.iterations).double().mean().item(),
            "residual": {"median": residual.median().item(), "most": residual.max().item()},
            "distance": {"median": away.median().item(), "most": away.max().item()},
        }
        rows.append(row)
        print(row)
    report = {"run": Path(run).parent.name, "images": images, "device": device_name(device), "versions": versions()}
    Path(out).write_text(json.dumps({**report, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
