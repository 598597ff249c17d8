"""Time and evaluations saved by early stopping: chosen on held-out images, measured once on the test split.

    python -m benchmarks.anytime OUT.json MODEL DATA [validation=2000] [test=2000] [device=auto] [cache=FOLDER]

The first images of the held-out split are integrated once on each grid, with logits at every step, and every criterion
and tolerance is tried on these. The cheapest that loses at most MARGIN points against the model's own steps is run on
the first images of the test split, alternating with the model's own steps, three times each; the ratio of the best
times counts.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from odevit.core.solver_config import SolverConfig
from odevit.loading import load
from odevit.solvers.early_exit import StopState, make_stop
from odevit.train.evaluate import evaluate_batches
from odevit.train.record import device_name, versions
from odevit.train.splits import evaluation_batches, load_run_data, resolve_device

# steps, horizon in multiples of the model's own: its own step, and coarser ones that may go on beyond the horizon.
GRIDS = [(12, 1.0), (8, 1.0), (12, 1.5), (6, 1.0), (9, 1.5), (12, 2.0), (8, 5 / 3), (8, 2.0)]
CRITERIA = [f"kl:{tolerance}" for tolerance in (0.001, 0.002, 0.003, 0.005, 0.007, 0.01, 0.02, 0.03)]
CRITERIA += [f"bound:{tolerance}" for tolerance in (0.3, 0.5, 0.7, 1, 1.5, 2, 3, 4, 6, 8)]
MARGIN = 0.2
ROUNDS = 3


@torch.no_grad()
def answers(model: Any, batches: Any, solver_config: SolverConfig) -> tuple[Tensor, Tensor]:
    """Logits after every step [step, image, label], and labels."""
    logits, labels = [], []
    for batch in batches:
        solution = model.follow(model.embed(batch["pixel_values"]), solver_config, save="all")
        logits.append(torch.stack([model.readout(state) for state in solution.states]).cpu())
        labels.append(batch["labels"].cpu())
    return torch.cat(logits, dim=1), torch.cat(labels)


def stopped(logits: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """The step at which each image stops, and its logits there: `solve(..., stop=)` for known logits."""
    stop, last = make_stop(name), len(logits) - 1
    when = torch.full((logits.shape[1],), last)
    waiting = torch.ones_like(when, dtype=torch.bool)
    nothing = torch.zeros(logits.shape[1], 1)
    for n in range(2, last):
        done = stop(StopState(1.0, nothing, nothing, list(logits[max(0, n - 2) : n + 1]))) & waiting
        when[done] = n
        waiting &= ~done
    return when, logits[when, torch.arange(len(when))]


def candidates(model: Any, batches: Any, own: float) -> Iterator[dict[str, Any]]:
    for steps, multiple in GRIDS:
        solver_config = model.solver_config.replace(steps=steps, horizon=multiple * model.solver_config.horizon)
        logits, labels = answers(model, batches, solver_config)
        for name in CRITERIA:
            when, chosen = stopped(logits, name)
            top1 = (chosen.argmax(-1) == labels).double().mean().item()
            yield {
                "steps": solver_config.steps,
                "horizon": solver_config.horizon,
                "stop": name,
                "top1": top1,
                "lost": 100 * (own - top1),
                "nfe": when.double().mean().item(),
            }


def main() -> None:
    out, name, data, *rest = sys.argv[1:]
    options = dict(word.split("=", 1) for word in rest)
    held_out, tested = (int(options.get(split, 2000)) for split in ("validation", "test"))
    device = resolve_device(options.get("device", "auto"))
    size = 100 if device.type == "cpu" else 1000
    model: Any = load(name)
    model.to(device)
    config = model.config
    with tempfile.TemporaryDirectory() as cache:
        dataset = load_run_data(name, data, model, options.get("cache", cache))
    pixels = {"mean": config.image_mean, "std": config.image_std, "device": device}
    validation = evaluation_batches(dataset, "validation", size, limit=held_out, **pixels)
    logits, labels = answers(model, validation, model.solver_config)
    own = (logits[-1].argmax(-1) == labels).double().mean().item()
    tried = sorted(candidates(model, validation, own), key=lambda candidate: candidate["nfe"])
    fine = [candidate for candidate in tried if candidate["lost"] <= MARGIN]
    best = fine[0]
    print(f"held out: {own:.2%} in {config.steps} steps; chosen {best}", flush=True)

    test = evaluation_batches(dataset, "test", size, limit=tested, **pixels)
    scores: dict[str, list[Any]] = {"all": [], "stopped": []}
    for _ in range(ROUNDS):
        scores["all"].append(evaluate_batches(model, test))
        solver_config = model.solver_config.replace(steps=best["steps"], horizon=best["horizon"])
        scores["stopped"].append(evaluate_batches(model, test, solver_config=solver_config, stop=best["stop"]))
    time = {key: min(score.milliseconds for score in runs) for key, runs in scores.items()}
    full, early = scores["all"][0], scores["stopped"][0]
    said = [f"validation={held_out}", f"test={tested}"]
    report = {
        "command": " ".join(["python -m benchmarks.anytime", Path(out).name, Path(name).name, "DATA", *said]),
        "device": device_name(device),
        "batch": size,
        "versions": versions(),
        "validation_images": held_out,
        "test_images": tested,
        "chosen": best,
        "test": {
            "steps": config.steps,
            "top1": full.top1,
            "stopped_top1": early.top1,
            "lost": 100 * (full.top1 - early.top1),
            "nfe": full.nfe,
            "stopped_nfe": early.nfe,
            "nfe_saved": 1 - early.nfe / full.nfe,
            "milliseconds": time["all"],
            "stopped_milliseconds": time["stopped"],
            "time_saved": 1 - time["stopped"] / time["all"],
            "rounds": {key: [score.milliseconds for score in runs] for key, runs in scores.items()},
        },
        "tried": tried,
    }
    Path(out).write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report["test"], indent=2))


if __name__ == "__main__":
    main()
