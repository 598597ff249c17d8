"""Milliseconds per image of a teacher and of each kind of student.

    python -m benchmarks.student_speed OUT.json TEACHER [knots=1,2,4] [images=16]

Parameters, evaluations and milliseconds per image, measured alternately, on the GPU if there is one. The students are
those of `benchmarks.same_time`, untrained: the time does not depend on training.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from benchmarks.same_time import names, settings

from odevit.compare.metrics import milliseconds
from odevit.core.image_model import ImageModel
from odevit.distill.distillation import compose_distillation
from odevit.distill.teacher import Teacher
from odevit.loading import load
from odevit.surgery.surgery import get_ode_model
from odevit.train.recipe_keys import word
from odevit.train.record import device_name, versions
from odevit.train.splits import resolve_device


@torch.no_grad()
def main(out: str, source: str, *options: str) -> None:
    given = dict(option.split("=", 1) for option in options)
    knots, images = [int(n) for n in given.get("knots", "1,2,4").split(",")], int(given.get("images", 16))
    device, teacher = resolve_device("auto"), Teacher(source)
    models: dict[str, ImageModel] = {"teacher": load(source)}
    for name in names(knots):
        words = [f"{key}={word(value)}" for key, value in settings(name).items()]
        config = compose_distillation([f"teacher={source}", "data=digits", *words]).student_config()
        models[name] = get_ode_model(teacher.model, config, vit_spec=teacher.vit_spec)
    models = {name: model.float().to(device).eval() for name, model in models.items()}
    pixels = torch.randn(images, teacher.vit_spec.channels, *teacher.vit_spec.size, device=device)
    times = milliseconds(models, pixels)
    rows = [
        {
            "name": name,
            "params": sum(p.numel() for p in model.parameters()),
            "nfe": model(pixels).stats.nfe,
            "milliseconds": times[name],
            "relative": times[name] / times["teacher"],
        }
        for name, model in models.items()
    ]
    for row in rows:
        print("{name:12s} {params:10,}  nfe {nfe:3}  {milliseconds:.3f} ms  {relative:.2f} x".format(**row))
    facts = {"teacher": Path(source).name, "images": images, "device": device_name(device), "versions": versions()}
    Path(out).write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
