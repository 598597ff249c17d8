"""Peak memory of 8 and 64 steps, by how checkpointing cuts them: python -m benchmarks.checkpoint_memory OUT.json

Cutting into 64 is the usual checkpointing, each step once; cutting into 4, and each part again, is ours.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.memory import peak_of_training_step

from odevit.solvers import checkpointing
from odevit.train.record import versions


def main() -> None:
    own, report = (
        checkpointing.BRANCHING,
        {"versions": versions(), "own": checkpointing.BRANCHING, "bytes": {}, "growth": {}},
    )
    for branching in (2, own, 8, 64):
        checkpointing.BRANCHING = branching
        few, many = (peak_of_training_step(steps, checkpoint=True) for steps in (8, 64))
        report["bytes"][branching] = {"8 steps": few, "64 steps": many}
        report["growth"][branching] = many / few
    checkpointing.BRANCHING = own
    few, many = (peak_of_training_step(steps, checkpoint=False) for steps in (8, 64))
    report["bytes"]["none"], report["growth"]["none"] = {"8 steps": few, "64 steps": many}, many / few
    Path(sys.argv[1]).write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report["growth"], indent=2))


if __name__ == "__main__":
    main()
