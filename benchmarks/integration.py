"""Does the answer hang on how it was integrated? Accuracy over solvers, step counts and horizons.

    python benchmarks/integration.py OUT.json MODEL DATA [IMAGES]

The first IMAGES (1,000) of the test split, on the CPU. Ott et al. (2021): a model whose accuracy falls under a *more*
accurate solver is a network that happens to be written as an equation.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import torch

from odevit import verbs
from odevit.train.record import device_name, versions

WAYS = [
    {"solver": "lie_trotter", "steps": [4, 6, 8, 12, 24, 48]},
    {"solver": "lie_trotter", "steps": 24, "horizon": 12.0},
    {"solver": "lie_trotter", "steps": 48, "horizon": 24.0},
    {"solver": "lie_trotter", "steps": 96, "horizon": 48.0},
    {"solver": ["euler", "heun", "rk4", "strang", "exponential_euler", "exponential_heun"], "steps": 24},
    {"solver": "dopri5"},
]


def main() -> None:
    out, model, data, *rest = sys.argv[1:]
    images = int(rest[0]) if rest else 1000
    scores = []
    with tempfile.TemporaryDirectory() as cache:
        how = {"data": data, "limit": images, "batch_size": 100, "device": "cpu", "cache": cache}
        for way in WAYS:
            for each in verbs.evaluate(model, **how, **way):
                scores.append(asdict(each))
                print(each.solver, each.steps, each.horizon, f"{each.score.top1:.2%}", each.score.nfe, flush=True)
    report = {
        "command": f"python benchmarks/integration.py {Path(out).name} {model} DATA {images}",
        "images": images,
        "device": device_name(torch.device("cpu")),
        "versions": versions(),
        "scores": scores,
    }
    Path(out).write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
