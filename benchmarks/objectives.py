"""What should a student match: CLS alone (the paper), or every token (RAPTOR); with the teacher's answer, or without?

    python -m benchmarks.objectives OUT.json TEACHER [SEEDS]

Distils one teacher of digits, the folder TEACHER that `odevit distill` left, by each objective with the recipe of
`odevit distill`, without labels, for SEEDS (2) seeds. Everything else is the same.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path

import torch

from odevit import cli
from odevit.train.record import device_name, versions

OBJECTIVES = {
    "CLS, JaSMin (the paper's)": {"patches": 0.0, "logits": 0.0, "jasmin": 1.0},
    "CLS": {"patches": 0.0, "logits": 0.0},
    "every token (RAPTOR's)": {"logits": 0.0},
    "every token and the answer (ours)": {},
}


def main() -> None:
    out, teacher, *rest = sys.argv[1:]
    seeds = int(rest[0]) if rest else 2
    rows = []
    for name, weights in OBJECTIVES.items():
        settings = {f"objective.{key}": value for key, value in weights.items()}
        runs = []
        for seed in range(seeds):
            with tempfile.TemporaryDirectory() as folder:
                where = {"teacher": teacher, "data": "digits", "compare": False, "seed": seed, "out": f"{folder}/run"}
                run = cli.distill(**where, **settings)
                runs.append(json.loads((run / "record.json").read_text()))
        rows.append(
            {
                "objective": name,
                "weights": weights,
                "agreement": statistics.mean(run["agreement"] for run in runs),
                "top1": statistics.mean(run["top1"] for run in runs),
                "seeds": [{key: run[key] for key in ("agreement", "top1", "seconds")} for run in runs],
                "teacher_top1": runs[0]["teacher_top1"],
            }
        )
        print(rows[-1], flush=True)
    report = {
        "command": f"python -m benchmarks.objectives {Path(out).name} TEACHER {seeds}",
        "device": device_name(torch.device("cpu")),
        "versions": versions(),
        "rows": rows,
    }
    Path(out).write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
