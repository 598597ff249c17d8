"""The share of its teacher's top-1 accuracy that a student keeps on the same images, and its standard error.

    python -m benchmarks.kept OUT.json TEACHER MODEL DATA [images=N] [cache=FOLDER]

On the test split, with the solver settings that the student was trained with. The error of the share is a bootstrap
standard deviation over 2,000 draws of as many images, the same for teacher and student; that of the lost points is a
paired standard error.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from odevit.analysis.significance import paired_error
from odevit.distill.teacher import Teacher
from odevit.loading import load
from odevit.train.record import device_name, versions
from odevit.train.splits import evaluation_batches, load_run_data, resolve_device

DRAWS = 2_000


def kept(answers: np.ndarray, teachers: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """What a student with these answers keeps of a teacher with those."""
    right, its = answers == labels, teachers == labels
    drawn = np.random.default_rng(0).integers(0, len(labels), (DRAWS, len(labels)), dtype=np.int32)
    shares = right[drawn].sum(1) / its[drawn].sum(1)
    return {
        "top1": right.mean().item(),
        "teacher_top1": its.mean().item(),
        "kept": (right.mean() / its.mean()).item(),
        "kept_error": shares.std(ddof=1).item(),
        "agreement": (answers == teachers).mean().item(),
        "lost": 100 * (its.mean() - right.mean()).item(),
        "lost_error": 100 * paired_error(torch.from_numpy(its), torch.from_numpy(right)),
    }


@torch.no_grad()
def main(out: str, teacher: str, model: str, data: str, *options: str) -> None:
    asked = dict(option.split("=", 1) for option in options)
    device = resolve_device("auto")
    student: Any = load(model).to(device)
    original = Teacher(teacher).float().to(device)
    read = load_run_data(model, data, student, asked.get("cache"))
    limit = int(asked["images"]) if "images" in asked else None
    answers, teachers, labels = [], [], []
    for batch in evaluation_batches(read, "test", 256, limit=limit, device=device):
        pixels = batch["pixel_values"]
        answers.append(student(pixels, return_dict=True).logits.argmax(-1).cpu())
        teachers.append(original.model(pixels).logits.argmax(-1).cpu())
        labels.append(batch["labels"].cpu())
    found = [torch.cat(parts).numpy() for parts in (answers, teachers, labels)]
    facts: dict[str, Any] = {"model": Path(model).name, "data": read.name, "split": "test", "images": len(found[0])}
    facts |= {"device": device_name(device), "versions": versions(), **kept(*found)}
    Path(out).write_text(json.dumps(facts, indent=2) + "\n")
    print("kept {kept:.2%} +- {kept_error:.2%}  agreement {agreement:.2%}".format(**facts))


if __name__ == "__main__":
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
