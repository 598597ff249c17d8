"""RUN -> FOLDER: half-precision weights, config, processor and card, small enough to ship.

python -m benchmarks.bundle RUN src/odevit/bundled/cifar10
python -m benchmarks.bundle RUN checkpoints/dinov2s-cifar100
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from safetensors.torch import load_file, save_file

NEEDED = ("preprocessor_config.json", "README.md", "recipe.yaml", "curves.png")
STUDENTS = ("odevit_classes.py", "alignment.json")
"""What only the run of a student has."""


def bundle(run: Path, folder: Path) -> Path:
    """Copy a run's model, its weights as float16. They are computed with in float32."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {key: value.half() for key, value in load_file(run / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((run / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "float32"}, indent=2, sort_keys=True) + "\n")
    for file in (*NEEDED, *(name for name in STUDENTS if (run / name).exists())):
        shutil.copy(run / file, folder / file)
    return folder


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m benchmarks.bundle RUN FOLDER")
    print(bundle(*map(Path, sys.argv[1:])))
