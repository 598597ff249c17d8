"""What does a student know of images that it has not seen? Its answers beside its teacher's, split by split.

    python -m benchmarks.unseen OUT.json MODEL TEACHER DATA [images=1000] [cache=FOLDER]

The first images of the training, the held-out and the test split, on the GPU if there is one, none of them augmented:
agreement with its standard error, KL(teacher || student), and top-1 of both. A teacher has learned most training images
by heart, the held-out ones among them; a student can learn that only of those that it is shown.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from odevit.distill.teacher import Teacher
from odevit.model import load
from odevit.objectives import logit_kl
from odevit.train.record import device_name, versions
from odevit.train.splits import choose_device, data_of, evaluation_batches

SPLITS = ("train", "validation", "test")


@torch.inference_mode()
def compared(student: Any, teacher: Teacher, batches: Any) -> dict[str, float]:
    """Means over all images of the batches."""
    totals, count = torch.zeros(4, dtype=torch.float64), 0
    for batch in batches:
        pixels, labels = batch["pixel_values"], batch["labels"]
        ours, theirs = student.ask(pixels)[0].float(), teacher.logits(pixels).float()
        kl = logit_kl(ours, theirs)["loss"] * len(labels)
        answers = [answer.argmax(-1) for answer in (ours, theirs)]
        rights = [(answers[0] == answers[1]).sum(), kl, *((answer == labels).sum() for answer in answers)]
        totals += torch.stack([right.double().cpu() for right in rights])
        count += len(labels)
    agreement, kl, top1, teacher_top1 = (totals / count).tolist()
    error = (agreement * (1 - agreement) / count) ** 0.5
    return {
        "images": count,
        "agreement": agreement,
        "error": error,
        "kl": kl,
        "top1": top1,
        "teacher_top1": teacher_top1,
    }


def main(out: str, model: str, teacher: str, data: str, *options: str) -> None:
    asked = dict(option.split("=", 1) for option in options)
    images, device = int(asked.get("images", 1000)), choose_device("auto")
    student, original = load(model).to(device), Teacher(teacher).float().to(device)
    read = data_of(model, data, student, asked.get("cache"))
    size = 500 if device.type == "cuda" else 50
    rows = {
        split: compared(student, original, evaluation_batches(read, split, size, limit=images, device=device))
        for split in SPLITS
    }
    facts: dict[str, Any] = {"model": Path(model).name, "teacher": Path(teacher).name, "data": read.name}
    facts |= {"device": device_name(device), "versions": versions()}
    Path(out).write_text(json.dumps({**facts, "splits": rows}, indent=2) + "\n")
    for split, row in rows.items():
        print(f"{split:10s}", "  ".join(f"{name} {value:.4g}" for name, value in row.items()))


if __name__ == "__main__":
    main(*sys.argv[1:])
