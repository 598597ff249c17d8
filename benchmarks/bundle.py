"""RUN -> odevit/bundled/NAME: half-precision weights, config, processor and card, small enough to ship."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from safetensors.torch import load_file, save_file

from odevit.bundled import FOLDER


def bundle(run: Path, name: str) -> Path:
    """Copy a run's model into the package, its weights as float16. They are computed with in float32."""
    folder = FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    weights = {key: value.half() for key, value in load_file(run / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((run / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "float32"}, indent=2, sort_keys=True) + "\n")
    for file in ("preprocessor_config.json", "README.md", "recipe.yaml", "curves.png"):
        shutil.copy(run / file, folder / file)
    return folder


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m benchmarks.bundle RUN NAME")
    print(bundle(Path(sys.argv[1]), sys.argv[2]))
