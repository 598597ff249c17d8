"""Where should knots stand: evenly, or where a teacher moves most? The first phase of a distillation tells, on a CPU.

    python -m benchmarks.knot_places OUT.json TEACHER DATA [knots=4] [updates=120] [images=24] [times=0,0.5,0.8,1]
        [cache=FOLDER]

Students begin as blends of their teacher's blocks and learn, from the same images, every layer by itself (the phase
`forced`: its loss and its rates). What is written down is their error on held-out images, over the variance of what the
teacher adds in a layer, the mean over layers: before the first update and after the last. `times` are a third student's
knots.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from odevit.data import DataSet
from odevit.distill.alignment import Alignment, layer_distances
from odevit.distill.distillation import DistillRecipe, compose_distillation
from odevit.distill.step import Distillation
from odevit.distill.teacher import Teacher
from odevit.model import get_ode_model
from odevit.model.inherit import knot_times
from odevit.train.optimisers import make_optimiser
from odevit.train.record import device_name, versions
from odevit.train.splits import choose_device, evaluation_batches, read_data

HELD_OUT = 96
"""Images on which the errors are measured."""


@torch.no_grad()
def error_of(network: Distillation, batches: list[dict[str, Tensor]]) -> float:
    """The mean over layers and batches."""
    network.eval()
    errors = [network(batch["pixel_values"]).parts["path"].item() for batch in batches]
    network.train()
    return statistics.mean(errors)


def learned(teacher: Teacher, data: DataSet, recipe: DistillRecipe, updates: int, images: int) -> dict[str, float]:
    """A student's error before and after the phase."""
    device, phase = choose_device("auto"), recipe.phases["forced"]
    torch.manual_seed(0)
    student = get_ode_model(teacher.model, recipe.student_config(), anatomy=teacher.anatomy).to(device)
    alignment = Alignment("uniform", (1.0,) * teacher.num_layers)
    network = Distillation(student, teacher, alignment, phase.goal(recipe.objective)).train()
    network.forced = True
    rates = {key: getattr(phase, key) for key in ("learning_rate", "muon_learning_rate")}
    optimiser = make_optimiser(student, replace(recipe.train, compile=False, **rates))
    highest = [group["lr"] for group in optimiser.param_groups]
    held_out = list(evaluation_batches(data, "validation", 32, limit=HELD_OUT, device=device))
    before = error_of(network, held_out)
    for n, batch in enumerate(evaluation_batches(data, "train", images, limit=updates * images, device=device)):
        height = min(1.0, (n + 1) / 8) * (1 + math.cos(math.pi * n / updates)) / 2
        for group, rate in zip(optimiser.param_groups, highest, strict=True):
            group["lr"] = rate * height
        network(batch["pixel_values"]).loss.backward()
        clip_grad_norm_(student.parameters(), recipe.train.clip)
        optimiser.step()
        optimiser.zero_grad()
    return {"before": before, "after": error_of(network, held_out)}


def main(out: str, source: str, data: str, *options: str) -> None:
    asked = dict(option.split("=", 1) for option in options)
    knots, updates, images = (int(asked.get(*pair)) for pair in (("knots", "4"), ("updates", "120"), ("images", "24")))
    words = [f"teacher={source}", f"data={data}", f"knots={knots}"]
    words += [f"data.cache={asked['cache']}"] if "cache" in asked else []
    recipe, teacher = compose_distillation(words), Teacher(source).float().to(choose_device("auto"))
    read = teacher.normalised(read_data(recipe, teacher.pixels))
    first = next(iter(evaluation_batches(read, "train", 64, device=choose_device("auto"))))["pixel_values"]
    moved = layer_distances([teacher.states(first)])
    places = {"evenly": None, "where the teacher moves most": list(knot_times(moved, knots))}
    if "times" in asked:
        places["as asked"] = [float(time) for time in asked["times"].split(",")]
    facts = {"teacher": Path(source).name, "data": read.name, "knots": knots, "updates": updates, "images": images}
    rows = {}
    for name, times in places.items():
        student = replace(recipe.student, knot_times=times)
        rows[name] = {"times": times, **learned(teacher, read, replace(recipe, student=student), updates, images)}
        print(f"{name:30s} {times} {rows[name]['before']:.3f} -> {rows[name]['after']:.3f}", flush=True)
        about = {"device": device_name(choose_device("auto")), "versions": versions(), "moved": moved, "places": rows}
        Path(out).write_text(json.dumps({**facts, **about}, indent=2) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
