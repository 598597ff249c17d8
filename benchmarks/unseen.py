"""Agreement of a student with its teacher on training, held-out and test images.

    python -m benchmarks.unseen OUT.json MODEL TEACHER DATA [images=1000] [cache=FOLDER]

The first images of each split, on the GPU if there is one, not augmented:
agreement with its standard error, KL(teacher || student), top-1 of both, the error of the student's states over the
variance of its teacher's, as distill/vit has it in the walk (CLS one half, all other tokens one half, the mean over
layers), and the error of the inputs of their heads.

A teacher has memorised most training images, the held-out ones too; a student can memorise only images that it sees.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from odevit.distill.alignment import Alignment
from odevit.distill.distillation import compose_distillation
from odevit.distill.loss import LayerDistillation
from odevit.distill.teacher import Teacher
from odevit.loading import load
from odevit.surgery.modeling_student import OdeStudent
from odevit.train.record import device_name, versions
from odevit.train.splits import evaluation_batches, load_run_data, resolve_device

SPLITS = ("train", "validation", "test")


@torch.inference_mode()
def compare_with_teacher(student: OdeStudent, teacher: Teacher, batches: Any) -> dict[str, float]:
    """Means over all images of the batches."""
    layers, goal = teacher.num_layers, compose_distillation(["teacher=FOLDER"]).objective
    goal = replace(goal, temperature=1.0, pooled=1.0)
    network = LayerDistillation(student, teacher, Alignment("uniform", (1.0,) * layers), goal).eval()
    totals, count = torch.zeros(6, dtype=torch.float64), 0
    for batch in batches:
        pixels, labels = batch["pixel_values"], batch["labels"]
        parts = network(pixels).parts
        ours, theirs = (model(pixels).logits.argmax(-1) for model in (student, teacher))
        means = [*((a == b).float().mean() for a, b in ((ours, theirs), (ours, labels), (theirs, labels)))]
        means += [parts[name] for name in ("logits", "path", "pooled")]
        totals += len(labels) * torch.stack([mean.double().cpu() for mean in means])
        count += len(labels)
    agreement, top1, teacher_top1, kl, path, pooled = (totals / count).tolist()
    error = (agreement * (1 - agreement) / count) ** 0.5
    about = {"images": count, "agreement": agreement, "error": error, "kl": kl, "path": path, "pooled": pooled}
    return {**about, "top1": top1, "teacher_top1": teacher_top1}


def main(out: str, model: str, teacher: str, data: str, *options: str) -> None:
    given = dict(option.split("=", 1) for option in options)
    images, device = int(given.get("images", 1000)), resolve_device("auto")
    student, original = load(model), Teacher(teacher).float().to(device)
    if not isinstance(student, OdeStudent):
        sys.exit(f"{model} is no student; expected the folder of one")
    student.to(device)
    read = load_run_data(model, data, student, given.get("cache"))
    size = 500 if device.type == "cuda" else 50
    rows = {
        split: compare_with_teacher(
            student, original, evaluation_batches(read, split, size, limit=images, device=device)
        )
        for split in SPLITS
    }
    facts: dict[str, Any] = {"model": Path(model).name, "teacher": Path(teacher).name, "data": read.name}
    facts |= {"device": device_name(device), "versions": versions()}
    Path(out).write_text(json.dumps({**facts, "splits": rows}, indent=2) + "\n")
    for split, row in rows.items():
        print(f"{split:10s}", "  ".join(f"{name} {value:.4g}" for name, value in row.items()))


if __name__ == "__main__":
    main(*sys.argv[1:])
