"""Does the answer hang on how it was integrated? One model, many ways.

    python -m benchmarks.attractor OUT.json MODEL DATA [IMAGES]

The first IMAGES (2,000) of the test split on the CPU: the model's own solver from 6 to 64 steps and from one to eight
times its horizon, four solvers it was not trained with, and its rest point. What a way loses against the model's own is
in points, with the standard error of that difference on the same images. Explicit solvers have a stability limit;
coarser grids than it are not a matter of the model. Ott et al. (2021): a model whose accuracy falls under a *more*
accurate solver is a network that happens to be written as an equation.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from odevit import verbs
from odevit.analysis.load import load_subject
from odevit.analysis.subject import Subject, untouched
from odevit.report.sweep import Outcome, Way, sweep
from odevit.train.record import device_name, versions
from odevit.train.splits import evaluation_batches

STEPS = (6, 8, 12, 24, 64)
STRETCHES = (1, 2, 4, 8)
SOLVERS = {"euler": (12, 24, 48), "heun": (12, 24), "rk4": (12, 24), "exponential_euler": (6, 12, 24)}


def ways_of(subject: Subject) -> dict[str, list[Way]]:
    own, time = subject.solver, subject.horizon
    return {
        "steps": [Way(own, steps, time) for steps in STEPS],
        "horizons": [Way(own, subject.steps * stretch, time * stretch) for stretch in STRETCHES],
        "solvers": [Way(name, steps, time) for name, counts in SOLVERS.items() for steps in counts],
    }


def numbers(outcome: Outcome, own: Outcome) -> dict[str, Any]:
    gap = own.right.double() - outcome.right.double()
    return {
        **outcome.numbers(),
        "lost": 100 * gap.mean().item(),
        "lost_error": 100 * gap.std().item() / len(gap) ** 0.5,
    }


@torch.no_grad()
def equilibria(subject: Subject, batches: Any) -> dict[str, Any]:
    """How often the rest point answers as the long way there, for the model's own steps and for the equation."""
    own, time = subject.solver, subject.horizon
    found = {"own": [0.0, 0.0, 0.0], "exponential_euler": [0.0, 0.0, 0.0]}
    images = 0
    for batch in batches:
        pixels, labels = batch["pixel_values"], batch["labels"]
        images += len(labels)
        for name, total in found.items():
            solver = own if name == "own" else name
            far = subject.model(pixels, solver=solver, steps=8 * subject.steps, horizon=8 * time).logits.argmax(-1)
            rest = subject.model(pixels, depth="equilibrium", solver=solver)
            answer = rest.logits.argmax(-1)
            total[0] += (answer == far).sum().item()
            total[1] += (answer == labels).sum().item()
            total[2] += rest.trajectory.evaluations.sum().item()
    keys = ("agreement_with_long_horizon", "top1", "nfe")
    return {
        name: {key: value / images for key, value in zip(keys, total, strict=True)} for name, total in found.items()
    }


def main() -> None:
    out, name, data, *rest = sys.argv[1:]
    images = int(rest[0]) if rest else 2000
    subject = load_subject(name)
    config = subject.model.config
    with tempfile.TemporaryDirectory() as cache:
        dataset = verbs.data_of(name, data, config.image_size, cache)
    pixels = {"mean": config.image_mean, "std": config.image_std}
    batches = evaluation_batches(dataset, "test", 100, limit=images, **pixels)
    ways = ways_of(subject)
    own = Way(subject.solver, subject.steps, subject.horizon)
    wanted = [own, *(way for part in ways.values() for way in part)]
    few = evaluation_batches(dataset, "test", 100, limit=min(images, 500), **pixels)
    with untouched(subject.model):
        outcomes = {each.way: each for each in sweep(subject, batches, wanted)}
        rest_points = equilibria(subject, few)
    report = {
        "command": f"python -m benchmarks.attractor {Path(out).name} {Path(name).name} DATA {images}",
        "device": device_name(torch.device("cpu")),
        "versions": versions(),
        "images": images,
        "own": numbers(outcomes[own], outcomes[own]),
        **{part: [numbers(outcomes[way], outcomes[own]) for way in each] for part, each in ways.items()},
        "equilibrium": {"images": min(images, 500), **rest_points},
    }
    Path(out).write_text(json.dumps(report, indent=2) + "\n")
    for part in ways:
        for each in report[part]:
            print(
                part,
                each["solver"],
                each["steps"],
                f"T={each['horizon']:g}",
                f"{each['top1']:.2%}",
                f"lost {each['lost']:+.2f} ± {each['lost_error']:.2f}",
                f"agreement {each['agreement']:.2%}",
            )
    print(report["equilibrium"])


if __name__ == "__main__":
    main()
