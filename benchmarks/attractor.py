"""Does the answer depend on how it was integrated? One model, many ways.

    python -m benchmarks.attractor OUT.json MODEL DATA [images=2000] [split=test] [cache=FOLDER]

The first images of a split, on the GPU if there is one: the model's own solver from 4 to 64 steps and from one to eight
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

from odevit.analysis.base import frozen
from odevit.analysis.limits import StabilityLimits, measure_limits
from odevit.analysis.settling import FAR, integrate_to_rest, measure_exponents
from odevit.analysis.significance import paired_error
from odevit.analysis.sweep import STEPS, Outcome, horizon_configs, sweep
from odevit.core.image_model import ImageModel
from odevit.core.solver_config import SolverConfig
from odevit.loading import load
from odevit.train.record import device_name, versions
from odevit.train.splits import evaluation_batches, load_run_data, resolve_device

STRETCHES = (1, 2, 4, 8)
SOLVERS = {
    "lie_trotter": (6, 12, 24, 64),
    "exponential_euler": (4, 6, 8, 12, 24),
    "euler": (8, 12, 16, 24, 48),
    "heun": (6, 8, 12, 24),
    "rk4": (4, 6, 12, 24),
}
RESTING = {"cuda": 1000, "cpu": 200}
"""Images whose rest points and exponents are measured, at most."""


def ways_of(own: SolverConfig) -> dict[str, list[SolverConfig]]:
    others = {name: counts for name, counts in SOLVERS.items() if name != own.name}
    return {
        "steps": [own.replace(steps=steps) for steps in STEPS],
        "horizons": horizon_configs(own, STRETCHES),
        "solvers": [own.replace(name, steps) for name, counts in others.items() for steps in counts],
    }


def numbers(outcome: Outcome, own: Outcome) -> dict[str, Any]:
    lost, error = own.top1 - outcome.top1, paired_error(own.right, outcome.right)
    return {**outcome.to_dict(), "lost": 100 * lost, "lost_error": 100 * error}


@torch.no_grad()
def equilibria(model: ImageModel, batches: Any) -> dict[str, Any]:
    """How often the rest point answers as the long way there, for the model's own steps and for the equation."""
    ways = {"own": model.solver_config, "exponential_euler": model.solver_config.replace("exponential_euler")}
    totals = {name: [0.0, 0.0, 0.0] for name in ways}
    images = 0
    for batch in batches:
        pixels, labels = batch["pixel_values"], batch["labels"]
        images += len(labels)
        for name, solver_config in ways.items():
            far = model(pixels, solver_config=solver_config.stretched(FAR), on_failure="ignore").logits.argmax(-1)
            output = model(pixels, solver_config=solver_config, depth="equilibrium", on_failure="ignore")
            solution = output.trajectory
            assert solution.evaluations is not None  # an equilibrium counts them for every image
            answer = output.logits.argmax(-1)
            counts = ((answer == far).sum(), (answer == labels).sum(), solution.evaluations.sum())
            totals[name] = [total + count.item() for total, count in zip(totals[name], counts, strict=True)]
    keys = ("agreement_with_long_horizon", "top1", "nfe")
    return {name: dict(zip(keys, (total / images for total in sums), strict=True)) for name, sums in totals.items()}


def exponents(model: ImageModel, batches: Any) -> tuple[dict[str, Any], StabilityLimits]:
    """lambda_1 at rest, of the model's own steps and of the equation (RK4 in half the step); and the stability limits.

    The measurement is that of `odevit analyze`, on the images given here.
    """
    growth: dict[str, Any] = {}
    starts = [model.embed(batch["pixel_values"]) for batch in batches]
    for name, solver_config in (
        ("own", model.solver_config),
        ("rk4", model.solver_config.replace("rk4", 2 * model.solver_config.steps)),
    ):
        rests = [integrate_to_rest(model, x0, solver_config) for x0 in starts]
        _, calm = measure_exponents(model.field, solver_config, starts, rests)
        growth[name] = {
            "step": solver_config.step,
            "negative": calm.negative.value,
            "converged": 1 - calm.not_converged.value,
            "mean": calm.mean,
            "largest": calm.largest,
        }
    limits = [measure_limits(model.field, rest, x0) for rest, x0 in zip(rests, starts, strict=True)]
    radius, forcing = (max(getattr(part, name) for part in limits) for name in ("radius", "forcing"))
    return growth, StabilityLimits(radius, forcing, sum(part.images for part in limits))


def main() -> None:
    out, name, data, *rest = sys.argv[1:]
    options = dict(word.split("=", 1) for word in rest)
    images, split = int(options.get("images", 2000)), options.get("split", "test")
    device = resolve_device("auto")
    size, resting = 100 if device.type == "cpu" else 500, min(images, RESTING[device.type])
    model: Any = load(name)
    model.to(device)
    with tempfile.TemporaryDirectory() as cache:
        dataset = load_run_data(name, data, model, options.get("cache", cache))
    pixels = {"mean": model.config.image_mean, "std": model.config.image_std, "device": device}
    batches = evaluation_batches(dataset, split, size, limit=images, **pixels)
    few = evaluation_batches(dataset, split, size, limit=resting, **pixels)
    own, ways = model.solver_config, ways_of(model.solver_config)
    with frozen(model):
        growth, limits = exponents(model, few)
        swept = sweep(model, batches, [own, *(solver_config for part in ways.values() for solver_config in part)])
        outcomes = {outcome.solver_config: outcome for outcome in limits.mark_stable(swept)}
        rest_points = equilibria(model, few)
    words = [Path(out).name, Path(name).name, "DATA", f"images={images}", f"split={split}"]
    report = {
        "command": " ".join(["python -m benchmarks.attractor", *words]),
        "device": device_name(device),
        "versions": versions(),
        "split": split,
        "images": images,
        "own": numbers(outcomes[own], outcomes[own]),
        **{
            part: [numbers(outcomes[solver_config], outcomes[own]) for solver_config in listed]
            for part, listed in ways.items()
        },
        "equilibrium": {"images": resting, **rest_points},
        "exponents": {"images": resting, **growth},
        "longest_stable_step": {solver: limits.max_step(solver) for solver in SOLVERS},
    }
    Path(out).write_text(json.dumps(report, indent=2) + "\n")
    for part in ways:
        for row in report[part]:
            print(
                part,
                row["solver"],
                row["steps"],
                f"T={row['horizon']:g}",
                f"{row['top1']:.2%}",
                f"lost {row['lost']:+.2f} ± {row['lost_error']:.2f}",
                f"agreement {row['agreement']:.2%}",
                "" if row["stable"] else "beyond the solver's limit",
            )
    print(json.dumps({key: report[key] for key in ("equilibrium", "exponents", "longest_stable_step")}, indent=2))


if __name__ == "__main__":
    main()
