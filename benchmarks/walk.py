"""How much code runs behind one call: functions, files, lines, changes of folder.

    python -m benchmarks.walk OUT.json

Counts, for `model(x)`, predict, train, distill and analyze on digits, the functions of odevit that are called
(comprehensions and lambdas aside), the files they stand in and their lines, and how often the folder changes from one
function to the next in the order in which they are called for the first time.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import odevit

ROOT = Path(odevit.__file__).parent
INSIDE = f"{ROOT}{os.sep}"
"""With the separator, because the path of odevit_command.py begins like that of the package."""
SMALL = ["device=cpu", "model.hidden_size=16", "model.num_attention_heads=2", "train.epochs=1"]


class CallRecorder:
    """A profile function that records the functions of odevit in the order of their first call, imports aside."""

    def __init__(self) -> None:
        self.functions: dict[tuple[str, str, int], None] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and not code.co_name.startswith("<") and code.co_filename.startswith(INSIDE):
            self.functions.setdefault((code.co_filename, code.co_name, code.co_firstlineno))

    def counts(self) -> dict[str, int]:
        files = [str(Path(file).relative_to(ROOT)) for file, _, _ in self.functions]
        folders = [os.path.dirname(file) or file for file in files]
        changes = sum(here != there for here, there in pairwise(folders))
        lines = sum(len((ROOT / file).read_text().splitlines()) for file in set(files))
        return {"functions": len(files), "files": len(set(files)), "lines": lines, "folder_changes": changes}


def count_calls(call: Callable[[], Any]) -> dict[str, int]:
    recorder = CallRecorder()
    sys.setprofile(recorder)
    try:
        call()
    finally:
        sys.setprofile(None)
    return recorder.counts()


def main() -> None:
    import numpy as np
    import torch
    from PIL import Image

    from odevit.cli import main as command

    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        command(["train", "out=run", *SMALL])
        Image.fromarray(np.zeros((8, 8), dtype=np.uint8)).save("digit.png")
        model = odevit.OdeViTForImageClassification.from_pretrained("run").eval()
        teacher = ["teacher_train.epochs=1", "model.steps=2", "student.steps=2", "train.steps=[2]", "compare=false"]
        walks = {
            "model(x)": count_calls(lambda: model(torch.zeros(1, 3, 8, 8))),
            "predict": count_calls(lambda: command(["predict", "digit.png", "model=run"])),
            "train": count_calls(lambda: command(["train", "out=again", *SMALL])),
            "distill": count_calls(lambda: command(["distill", "out=student", *SMALL, *teacher])),
            "analyze": count_calls(lambda: command(["analyze", "run", "limit=16", "device=cpu"])),
        }
        os.chdir(here)
    sources = list(ROOT.rglob("*.py"))
    lines = sum(len(path.read_text().splitlines()) for path in sources)
    report = {"walks": walks, "source_files": len(sources), "source_lines": lines}
    Path(sys.argv[1]).write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
