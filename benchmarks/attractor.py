"""Does the answer hang on how it was integrated? One model, many ways.

    python -m benchmarks.attractor OUT.json MODEL DATA [images=2000] [split=test] [cache=FOLDER]

The first images of a split, on the GPU if there is one: the model's own solver from 6 to 64 steps and from one to eight
times its horizon, four other solvers, its rest point, and the exponents there. What a way loses against the model's own
is in points, with the standard error of that difference on the same images. Explicit solvers have a stability limit,
measured at the rest points; coarser grids than it are marked, for they are not a matter of the model. Ott et al.
(2021): a model whose accuracy falls under a *more* accurate solver is a network that happens to be written as an
equation.
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
from odevit.analysis.lyapunov import maximal_exponent
from odevit.analysis.subject import Subject, untouched
from odevit.report.limits import Limits, measure_limits
from odevit.report.sweep import Outcome, Way, sweep
from odevit.train.record import device_name, versions
from odevit.train.splits import choose_device, evaluation_batches

STEPS = (4, 6, 8, 12, 24, 64)
STRETCHES = (1, 2, 4, 8)
SOLVERS = {
    "lie_trotter": (6, 12, 24, 64),
    "exponential_euler": (4, 6, 8, 12, 24),
    "euler": (8, 12, 16, 24, 48),
    "heun": (6, 8, 12, 24),
    "rk4": (4, 6, 12, 24),
}
RESTING = {"cuda": 1000, "cpu": 200}
"""Images whose rest points and exponents are looked at, at most."""
FAR = 8
"""Horizons after which a state counts as at rest."""


def ways_of(subject: Subject) -> dict[str, list[Way]]:
    own, time = subject.solver, subject.horizon
    return {
        "steps": [Way(own, steps, time) for steps in STEPS],
        "horizons": [Way(own, subject.steps * stretch, time * stretch) for stretch in STRETCHES],
        "solvers": [Way(name, steps, time) for name, counts in SOLVERS.items() if name != own for steps in counts],
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
            far = subject.model(pixels, solver=solver, steps=FAR * subject.steps, horizon=FAR * time).logits.argmax(-1)
            rest = subject.model(pixels, depth="equilibrium", solver=solver)
            answer = rest.logits.argmax(-1)
            total[0] += (answer == far).sum().item()
            total[1] += (answer == labels).sum().item()
            total[2] += rest.trajectory.evaluations.sum().item()
    keys = ("agreement_with_long_horizon", "top1", "nfe")
    return {
        name: {key: value / images for key, value in zip(keys, total, strict=True)} for name, total in found.items()
    }


def exponents(subject: Subject, batches: Any) -> tuple[dict[str, Any], Limits]:
    """lambda_1 where trajectories have come to rest, of the model's own steps and of the equation; and the limits."""
    own, time = subject.solver, subject.horizon
    found: dict[str, Any] = {}
    limits = []
    for name, solver, steps in (("own", own, subject.steps), ("rk4", "rk4", 2 * subject.steps)):
        values, converged = [], []
        for batch in batches:
            x0 = subject.embed(batch["pixel_values"])
            rest = subject.solve(x0, solver=solver, steps=FAR * subject.steps, horizon=FAR * time).state
            each = maximal_exponent(
                subject.field, rest, horizon=time, steps=steps, solver=solver, transient=2 * time, anchor=x0
            )
            values.append(each.maximal.cpu())
            converged.append(each.converged.cpu())
            if name == "rk4":
                limits.append(measure_limits(subject.field, rest, x0))
        together = torch.cat(values)
        found[name] = {
            "step": time / steps,
            "negative": (together < 0).double().mean().item(),
            "converged": torch.cat(converged).double().mean().item(),
            "mean": together.mean().item(),
            "largest": together.max().item(),
        }
    largest = Limits(
        max(each.radius for each in limits), max(each.forcing for each in limits), sum(each.images for each in limits)
    )
    return found, largest


def main() -> None:
    out, name, data, *rest = sys.argv[1:]
    options = dict(each.split("=", 1) for each in rest)
    images, split = int(options.get("images", 2000)), options.get("split", "test")
    said = [f"images={images}", f"split={split}"]
    device = choose_device("auto")
    size, resting = 100 if device.type == "cpu" else 500, min(images, RESTING[device.type])
    subject = load_subject(name)
    subject.model.to(device)
    config = subject.model.config
    with tempfile.TemporaryDirectory() as cache:
        dataset = verbs.data_of(name, data, config.image_size, options.get("cache", cache))
    pixels = {"mean": config.image_mean, "std": config.image_std, "device": device}
    batches = evaluation_batches(dataset, split, size, limit=images, **pixels)
    few = evaluation_batches(dataset, split, size, limit=resting, **pixels)
    ways = ways_of(subject)
    own = Way(subject.solver, subject.steps, subject.horizon)
    wanted = [own, *(way for part in ways.values() for way in part)]
    with untouched(subject.model):
        growth, limits = exponents(subject, few)
        outcomes = {each.way: each for each in limits.marked(sweep(subject, batches, wanted))}
        rest_points = equilibria(subject, few)
    report = {
        "command": " ".join(["python -m benchmarks.attractor", Path(out).name, Path(name).name, "DATA", *said]),
        "device": device_name(device),
        "versions": versions(),
        "split": split,
        "images": images,
        "own": numbers(outcomes[own], outcomes[own]),
        **{part: [numbers(outcomes[way], outcomes[own]) for way in each] for part, each in ways.items()},
        "equilibrium": {"images": resting, **rest_points},
        "exponents": {"images": resting, **growth},
        "longest_stable_step": {solver: limits.longest(solver) for solver in SOLVERS},
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
                "" if each["stable"] else "beyond the solver's limit",
            )
    print(json.dumps({key: report[key] for key in ("equilibrium", "exponents", "longest_stable_step")}, indent=2))


if __name__ == "__main__":
    main()
