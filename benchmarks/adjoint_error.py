"""How wrong is the gradient of the adjoint? That of the same solver, backwards through its own steps, stands beside it.

    python -m benchmarks.adjoint_error OUT.json MODEL DATA [images=16] [tolerances=1e-1,1e-2,1e-3,1e-4] [cache=FOLDER]

The gradient of the cross entropy of the first test images with respect to all weights, with dopri5 to a tolerance. The
error is |g - g*| / |g*|, g* the gradient through steps to a tolerance of 1e-8, all in double precision. Evaluations are
those on the way there and, for the adjoint, on the way back: each of these costs about three.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from odevit.core.field import Branch
from odevit.core.modeling_odevit import OdeViTForImageClassification
from odevit.loading import load
from odevit.solvers.adaptive import Dopri5
from odevit.train.record import device_name, versions
from odevit.train.splits import evaluation_batches, load_run_data, resolve_device

EXACT = 1e-8


class Counted:
    """How often the field was evaluated."""

    def __init__(self, model: OdeViTForImageClassification) -> None:
        branches = [module for module in model.modules() if isinstance(module, Branch)]
        self.calls, self.of_each = 0, len(branches)
        for branch in branches:
            branch.register_forward_pre_hook(self._count)

    def _count(self, *_: Any) -> None:
        self.calls += 1

    def take(self) -> int:
        """Evaluations since the last call."""
        calls, self.calls = self.calls, 0
        return calls // self.of_each


def gradient(
    model: OdeViTForImageClassification, batch: dict[str, Tensor], counted: Counted, tolerance: float, adjoint: bool
) -> tuple[Tensor, int, int]:
    """dL/dw as one vector, and the evaluations there and back."""
    model.zero_grad()
    solver_config = model.solver_config.replace(Dopri5(rtol=tolerance, atol=tolerance))
    loss = model(**batch, solver_config=solver_config, adjoint=adjoint).loss
    there = counted.take()
    loss.backward()
    grads = [weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]
    return torch.cat(grads), there, counted.take()


def main(out: str, name: str, data: str, *options: str) -> None:
    given = dict(option.split("=", 1) for option in options)
    images, device = int(given.get("images", 16)), resolve_device("auto")
    model = load(name).to(device).double().eval()
    batches = evaluation_batches(
        load_run_data(name, data, model, given.get("cache")), "test", images, limit=images, device=device
    )
    batch = {key: value.double() if value.is_floating_point() else value for key, value in next(iter(batches)).items()}
    counted = Counted(model)
    exact, _, _ = gradient(model, batch, counted, EXACT, adjoint=False)
    rows = []
    for tolerance in map(float, given.get("tolerances", "1e-1,1e-2,1e-3,1e-4").split(",")):
        row: dict[str, Any] = {"tolerance": tolerance}
        for kind, adjoint in (("steps", False), ("adjoint", True)):
            found, there, back = gradient(model, batch, counted, tolerance, adjoint)
            error = ((found - exact).norm() / exact.norm()).item()
            row[kind] = {"error": error, "there": there, "back": back}
        rows.append(row)
        print(f"{tolerance:g}: through its steps {row['steps']['error']:.2%}, adjoint {row['adjoint']['error']:.2%}")
    facts = {"model": name, "images": images, "device": device_name(device), "versions": versions()}
    Path(out).write_text(json.dumps({**facts, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
