"""Knot times and interpolation of weights, compared by the first phase of a distillation on a CPU.

    python -m benchmarks.knot_places OUT.json TEACHER DATA [knots=4] [updates=80] [images=16] [cache=FOLDER]

Students that are in OUT.json are not trained again. They start as blends of their teacher's blocks and learn every
layer from the same images with teacher forcing (the phase `forced`: its loss and its rates). The result is their error
on held-out images, over the variance of what the teacher adds in a layer, the mean over layers: before the first update
and after the last.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from odevit.data.images import DataSet
from odevit.distill.alignment import Alignment, layer_distances
from odevit.distill.distillation import DistillRecipe, compose_distillation
from odevit.distill.loss import LayerDistillation
from odevit.distill.teacher import Teacher
from odevit.surgery.surgery import get_ode_model
from odevit.surgery.weight_init import knot_times
from odevit.train.optimisers import make_optimiser
from odevit.train.record import device_name, versions
from odevit.train.splits import evaluation_batches, read_data, resolve_device

HELD_OUT = 96
"""Images on which the errors are measured."""
PIECES = {"blend": "constant", "vector_knots": None, "vector_blend": "constant"}


def students(moved: Sequence[float], knots: int) -> dict[str, dict[str, Any]]:
    """Changes of the default student, by name; `moved` is how far each layer of the teacher moves the tokens."""
    last = 1 - 1 / len(moved)
    early = [n / (knots - 1) * last for n in range(knots)]
    return {
        "straight, knots evenly": {},
        "straight, knots where the teacher moves most": {"knot_times": list(knot_times(moved, knots))},
        "pieces, evenly": PIECES,
        "pieces, twice as many of norms and biases": {**PIECES, "vector_knots": 2 * knots},
        "pieces, a norm and a bias for every layer": {**PIECES, "vector_knots": len(moved)},
        "pieces, norms and biases straight": {"blend": "constant", "vector_blend": "linear"},
        "pieces, the last of one layer": {**PIECES, "vector_knots": 2 * knots, "knot_times": early},
    }


@torch.no_grad()
def error_of(network: LayerDistillation, batches: list[dict[str, Tensor]]) -> float:
    """The mean over layers and batches."""
    network.eval()
    errors = [network(batch["pixel_values"]).parts["path"].item() for batch in batches]
    network.train()
    return statistics.mean(errors)


def train_first_phase(
    teacher: Teacher, data: DataSet, recipe: DistillRecipe, updates: int, images: int
) -> dict[str, float]:
    """A student's error before and after the phase."""
    device, phase = resolve_device("auto"), recipe.phases["layerwise"]
    torch.manual_seed(0)
    student = get_ode_model(teacher.model, recipe.student_config(), vit_spec=teacher.vit_spec).to(device)
    alignment = Alignment("uniform", (1.0,) * teacher.num_layers)
    network = LayerDistillation(student, teacher, alignment, phase.full_objective(recipe.objective)).train()
    network.teacher_forcing = True
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
    given = dict(option.split("=", 1) for option in options)
    knots, updates, images = (int(given.get(*pair)) for pair in (("knots", "4"), ("updates", "80"), ("images", "16")))
    words = [f"teacher={source}", f"data={data}", f"knots={knots}"]
    words += [f"cache={given['cache']}"] if "cache" in given else []
    recipe, teacher = compose_distillation(words), Teacher(source).float().to(resolve_device("auto"))
    read = teacher.normalize(read_data(recipe, teacher.input_format))
    first = next(iter(evaluation_batches(read, "train", 64, device=resolve_device("auto"))))["pixel_values"]
    moved = layer_distances([teacher.states(first)])
    facts = {"teacher": Path(source).name, "data": read.name, "knots": knots, "updates": updates, "images": images}
    facts |= {"device": device_name(resolve_device("auto")), "versions": versions(), "moved": moved}
    rows = json.loads(Path(out).read_text())["students"] if Path(out).exists() else {}
    for name, changes in students(moved, knots).items():
        if name in rows:
            continue
        student = replace(recipe.student, **changes)
        errors = train_first_phase(teacher, read, replace(recipe, student=student), updates, images)
        rows[name] = {"student": changes, **errors}
        print(f"{name:45s} {errors['before']:.3f} -> {errors['after']:.3f}", flush=True)
        Path(out).write_text(json.dumps({**facts, "students": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
