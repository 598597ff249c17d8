"""images/s x field evaluations: the speed of training, inside the Trainer, and how long the device waits for data.

    python benchmarks/train_speed.py OUT.json experiment=fast/cifar10 data.source=FOLDER

Runs one epoch to warm up, then times epochs of real batches against epochs of one batch repeated. What the real ones
take longer is the time the device waits for data. Writes the figures as JSON.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import torch

from odevit.train.classifier import ClassifierTask
from odevit.train.compose import compose_recipe
from odevit.train.record import device_name, versions
from odevit.train.runner import make_trainer

EPOCHS = 4


class Repeated:
    """The first batch, as often as there are batches."""

    def __init__(self, batches):
        self.batches = batches
        self.batch_size = batches.batch_size
        self.first = next(iter(batches))

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        return (self.first for _ in range(len(self)))


def timed(trainer, device):
    """Seconds of `EPOCHS` epochs without evaluation, and the solver steps that were drawn for them."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    trainer.train()
    if device.type == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    updates = trainer.state.global_step
    ways = [trainer.task.sampler.draw(update) for update in range(updates)] if trainer.task.sampler else []
    return (
        seconds,
        updates,
        sum(solver_config.steps for solver_config in ways) or updates * trainer.network.config.steps,
    )


def main():
    out, *overrides = sys.argv[1:]
    recipe = compose_recipe(overrides)
    recipe.train.epochs = EPOCHS
    device = ClassifierTask(recipe).process.device
    figures = {"command": " ".join(["python", *sys.argv]), "device": device_name(device), "versions": versions()}
    with tempfile.TemporaryDirectory() as folder:
        recipe.out = folder
        task = ClassifierTask(recipe)
        task.build()
        trainer = make_trainer(task)
        trainer.args.eval_strategy = trainer.args.save_strategy = "no"  # nothing but training is timed
        started = time.perf_counter()
        trainer.capture_all()
        if device.type == "cuda":
            torch.cuda.synchronize()
        figures["compile_and_capture_seconds"] = time.perf_counter() - started
        timed(trainer, device)  # the first call also sets the optimiser up
        for name in ("real", "repeated", "real", "repeated"):
            own = task.batches
            if name == "repeated":
                task.batches = Repeated(own)
            seconds, updates, drawn = timed(trainer, device)
            task.batches = own
            images = updates * recipe.train.batch_size
            figures.setdefault(name, []).append(
                {
                    "seconds": seconds,
                    "images_per_second": images / seconds,
                    "image_steps_per_second": drawn * recipe.train.batch_size / seconds,
                }
            )
    best = {name: min(run["seconds"] for run in figures[name]) for name in ("real", "repeated")}
    figures["share_of_time_waiting_for_data"] = max(0.0, 1 - best["repeated"] / best["real"])
    figures["params"] = sum(parameter.numel() for parameter in task.network.parameters())
    figures["peak_memory_gib"] = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None
    Path(out).write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
