"""Put the runs of one recipe together as a record: python -m benchmarks.collect records/NAME RUN [RUN ...]."""

from __future__ import annotations

import json
import shutil
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def collect(runs: Sequence[Path], folder: Path) -> dict[str, Any]:
    """Put runs that differ only in their seed together as records/NAME: record.json, and the recipe, log, curves and
    other measurements of each.

    Accuracies of the record are means over seeds; the spread is the sample standard deviation, None for one seed. Runs
    that ended by time may have seen different numbers of epochs, whose mean it has then.
    """
    parts = [json.loads((run / "record.json").read_text()) for run in runs]
    first = parts[0]
    by_time = all("train.seconds=" in part["command"] for part in parts)
    for key in ("data", "params", "nfe", *(() if by_time else ("epochs",))):
        different = {json.dumps(part[key]) for part in parts}
        if len(different) > 1:
            raise ValueError(
                f"the runs differ in {key!r} ({', '.join(sorted(different))}); a record is of one recipe, seeds apart"
            )
    seeds = [seed for part in parts for seed in part["seeds"]]
    record = {**first, "name": folder.name, "seeds": seeds}
    for key in (key for key in ("top1", "top3", "top5", "agreement", "teacher_top1") if key in seeds[0]):
        values = [seed[key] for seed in seeds]
        record[key] = statistics.mean(values)
        record[f"{key}_spread"] = statistics.stdev(values) if len(values) > 1 else None
    record["epochs"] = round(statistics.mean(part["epochs"] for part in parts), 2) if by_time else first["epochs"]
    record["seconds"] = statistics.mean(seed["seconds"] for seed in seeds)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "record.json").write_text(json.dumps(record, indent=2) + "\n")
    for run, part in zip(runs, parts, strict=True):
        seed = part["seeds"][0]["seed"]
        for name in ("recipe.yaml", "metrics.jsonl", "curves.png", "alignment.json", "comparison.json", "log.txt"):
            if (run / name).exists():
                shutil.copy(run / name, folder / f"seed{seed}-{name}")
    return record


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: python -m benchmarks.collect records/NAME RUN [RUN ...]")
    print(json.dumps(collect([Path(run) for run in sys.argv[2:]], Path(sys.argv[1])), indent=2))
