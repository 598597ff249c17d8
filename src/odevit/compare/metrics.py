"""A trained model -> evaluations, memory, answers in other ways, exponent: what accuracy alone does not tell."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from odevit.analysis.base import frozen
from odevit.analysis.settling import integrate_to_rest, measure_exponents
from odevit.analysis.significance import Proportion, Z
from odevit.compare.memory import peak_bytes
from odevit.core.image_model import ImageModel
from odevit.core.modeling_odevit import OdeViTForImageClassification
from odevit.core.solution import Solution
from odevit.core.solver_config import SolverConfig
from odevit.data.batches import Batches
from odevit.train.classifier import ClassifierTask
from odevit.train.evaluate import wait_for
from odevit.train.loss import TrainingLoss
from odevit.train.splits import evaluation_batches

SOLVERS_TRIED = ("euler", "heun", "rk4", "dopri5")
"""Solvers that a model is asked with besides its own."""
EXPONENTS = 16
"""Test images whose Lyapunov exponent is measured."""
ROUNDS = 5
"""How often each model is timed."""
HASHED = 3
"""Batches at the beginning of a training that are hashed, to show that all systems see the same."""


def measure(task: ClassifierTask, images: int) -> dict[str, Any]:
    """Everything that is measured of the network of a finished run, on the first `images` of the test split.

    Training is not measured here: the record of the run has accuracy, time and parameters.
    """
    model, device = task.network, task.process.device
    batches = list(evaluation_batches(task.data, "test", limit=images, device=device))
    first = first_batches(task.batches)
    with frozen(model):
        own = [model.ask(batch["pixel_values"]) for batch in batches]
        evaluations = torch.cat([evaluations_of(solution, len(logits)) for logits, solution in own])
        usual, labels = torch.cat([answers_of(logits) for logits, _ in own]), labels_of(batches)
        measured = {
            "images": len(labels),
            "nfe": {"mean": evaluations.mean().item(), "max": evaluations.max().item()},
            "failure": next((said for _, solution in own if (said := solution.failure or solution.notice)), None),
            "unsettled": sum(int(solution.count_unsettled()) for _, solution in own) / len(labels),
            "ways": list(in_other_ways(model, batches, usual, labels)),
            "exponent": exponent(model, batches[0]["pixel_values"][:EXPONENTS]),
        }
    return {
        **measured,
        "batches": hashed(first),
        "memory": {
            "bytes": training_peak(task, first[0]),
            "batch": len(first[0]["labels"]),
            "how": "CUDA's allocator" if device.type == "cuda" else "tensors alive at one time",
        },
    }


def first_batches(batches: Batches) -> list[dict[str, Tensor]]:
    """What training begins with."""
    batches.set_epoch(0)
    return list(islice(batches, HASHED))


def hashed(batches: Iterable[dict[str, Tensor]]) -> str:
    """SHA-256 of pixels and labels."""
    digest = hashlib.sha256()
    for batch in batches:
        for name in ("pixel_values", "labels"):
            digest.update(batch[name].cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def evaluations_of(solution: Solution, count: int) -> Tensor:
    """Evaluations of the field for each of `count` images."""
    per_image = solution.evaluations
    return torch.full((count,), float(solution.stats.nfe)) if per_image is None else per_image.double().cpu()


def answers_of(logits: Tensor) -> Tensor:
    """The likeliest class of each image, and -1 where the logits are not finite."""
    return torch.where(logits.isfinite().all(dim=-1), logits.argmax(dim=-1), -1).cpu()


def labels_of(batches: Iterable[dict[str, Tensor]]) -> Tensor:
    return torch.cat([batch["labels"].cpu() for batch in batches])


def in_other_ways(
    model: OdeViTForImageClassification, batches: list[dict[str, Tensor]], usual: Tensor, labels: Tensor
) -> Iterator[dict[str, Any]]:
    """Accuracy and share of changed answers with half and twice the steps, and with other solvers.

    A depth that knows no such way refuses it, and is not asked further.
    """
    for solver, steps in others(model.solver_config):
        try:
            solver_config = model.depth.resolve(solver, steps, None)
            asked = [model.ask(batch["pixel_values"], solver_config) for batch in batches]
        except ValueError:  # its depth has no solver, or no other number of steps
            continue
        answers = torch.cat([answers_of(logits) for logits, _ in asked])
        evaluations = torch.cat([evaluations_of(solution, len(logits)) for logits, solution in asked])
        yield {
            "solver": solver or model.solver_config.name,
            "steps": steps or model.solver_config.steps,
            "nfe": evaluations.mean().item(),
            "top1": Proportion.of(answers == labels).value,
            "changed": Proportion.of((answers != usual) | (answers < 0)).value,
            "finite": Proportion.of(answers >= 0).value,
        }


def others(own: SolverConfig) -> list[tuple[str | None, int | None]]:
    """Half and twice the steps, where a solver takes a number of them, and each other solver."""
    counts = {max(1, own.steps // 2), 2 * own.steps} - {own.steps} if own.is_fixed else set[int]()
    return [(None, steps) for steps in sorted(counts)] + [(name, None) for name in SOLVERS_TRIED if name != own.name]


def exponent(model: OdeViTForImageClassification, pixels: Tensor) -> dict[str, Any] | None:
    """The mean of lambda_1 over images after eight horizons with its 95% interval, and how often it is negative.

    None where there is no trajectory.
    """
    if not model.depth.has_trajectory:
        return None
    x0 = model.embed(pixels)
    path, rest = (
        {
            "mean": part.mean,
            "interval": None if part.mean is None else interval(part.mean, part.mean_error),
            "negative": part.negative.value,
            "finite": len(part.finite),
        }
        for part in measure_exponents(model.field, model.solver_config, [x0], [integrate_to_rest(model, x0)])
    )
    return {"images": len(x0), **rest, "path": path}


def interval(mean: float, error: float | None) -> list[float]:
    """mean -+ 1.96 standard errors."""
    half = Z * error if error is not None and math.isfinite(error) else math.nan
    return [mean - half, mean + half]


def training_peak(task: ClassifierTask, batch: dict[str, Tensor]) -> int:
    """Bytes at the peak of one forward and backward pass of a training batch, in the model's own way."""
    network, loss = task.network, TrainingLoss.of(task.recipe.train)
    solver_config = task.network.solver_config if task.network.depth.has_trajectory else None
    was_training = network.training
    network.train()
    device, mixed = task.process.device, task.recipe.train.precision == "bf16"

    def step() -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=mixed):
            value = loss(network, batch, solver_config)
        value.backward()

    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            return peak_bytes(step, device)
    finally:
        network.zero_grad()
        network.train(was_training)


def spends_the_same(model: OdeViTForImageClassification, pixels: Tensor, spent: Mapping[str, float]) -> bool:
    """Whether every image costs this model the evaluations that were measured: mean and most."""
    with torch.no_grad():
        logits, solution = model.ask(pixels)
    evaluations = evaluations_of(solution, len(logits))
    return all(torch.isclose(evaluations, torch.full_like(evaluations, count)).all() for count in spent.values())


def milliseconds(models: Mapping[str, ImageModel], pixels: Tensor, rounds: int = ROUNDS) -> dict[str, float]:
    """The least time per image of each model, taken in turns: whatever else runs on the machine only adds to it."""
    times: dict[str, list[float]] = {name: [] for name in models}
    for number in range(rounds + 1):  # the first warms up
        for name, model in models.items():
            wait_for(pixels.device)
            began = time.perf_counter()
            with torch.no_grad():
                model.ask(pixels)
            wait_for(pixels.device)
            if number:
                times[name].append(1000 * (time.perf_counter() - began) / len(pixels))
    return {name: min(taken) for name, taken in times.items()}
