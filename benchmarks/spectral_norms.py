"""sigma_max of every matrix of a model: python benchmarks/spectral_norms.py OUT.json NAME=MODEL ..."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import nn

from odevit import load
from odevit.core.layers import Projection
from odevit.train.record import versions


def norms(model: nn.Module) -> dict[str, float]:
    """The largest singular value of each matrix, by the last parts of its name."""
    return {
        ".".join(name.split(".")[-3:]): round(float(torch.linalg.matrix_norm(module.weight.flatten(1), ord=2)), 3)
        for name, module in model.named_modules()
        if isinstance(module, Projection | nn.Conv2d)
    }


def main() -> None:
    out, *named = sys.argv[1:]
    models = dict(word.split("=", 1) for word in named)
    with torch.no_grad():
        report = {"versions": versions(), "norms": {name: norms(load(path)) for name, path in models.items()}}
    Path(out).write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
