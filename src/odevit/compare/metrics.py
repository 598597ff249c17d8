"""A trained model -> evaluations, memory, accuracy with other solvers, Lyapunov exponent, time."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from odevit.analysis.base import frozen
from odevit.analysis.settling import integrate_to_rest, measure_exponents
from odevit.analysis.significance import Z
from odevit.core.image_model import ImageModel
from odevit.core.modeling_odevit import OdeViTForImageClassification
from odevit.core.solver_config import SolverConfig
from odevit.train.classifier import ClassifierTask
from odevit.train.evaluate import wait_for
from odevit.train.loss import TrainingLoss
from odevit.train.splits import evaluation_batches

SOLVERS_TRIED = ("euler", "heun", "rk4", "dopri5")
EXPONENT_IMAGES = 16
"""Test images whose Lyapunov exponent is measured."""
ROUNDS = 5
"""How often each model is timed."""
HASHED_BATCHES = 3
"""The first batches of a training are hashed, to show that all systems see the same."""

Batches = list[dict[str, Tensor]]


def measure(task: ClassifierTask, images: int) -> dict[str, Any]:
    """The network of a finished run on the first `images` of the test split.

    Accuracy, time and parameters are in the record of the run.
    """
    model, device = task.network, task.process.device
    batches: Batches = list(evaluation_batches(task.data, "test", limit=images, device=device))
    labels = torch.cat([batch["labels"].cpu() for batch in batches])
    task.batches.set_epoch(0)
    first = list(islice(task.batches, HASHED_BATCHES))
    with frozen(model):
        own = Answers.of(model, batches)
        measured = {
            "images": len(labels),
            "nfe": {"mean": own.evaluations.mean().item(), "max": own.evaluations.max().item()},
            "failure": own.warning,
            "unsettled": own.unsettled / len(labels),
            "ways": measure_other_solvers(model, batches, own.classes, labels),
            "exponent": measure_exponent(model, batches[0]["pixel_values"][:EXPONENT_IMAGES]),
        }
    return {
        **measured,
        "batches": hash_batches(first),
        "memory": {
            "bytes": training_peak(task, first[0]),
            "batch": len(first[0]["labels"]),
            "how": "CUDA's allocator" if device.type == "cuda" else "tensors alive at one time",
        },
    }


@dataclass(frozen=True)
class Answers:
    """What a model says of images.

    Args:
        classes: the likeliest class of each image, -1 where the logits are not finite.
        evaluations: of the field, for each image.
        unsettled: images whose trajectory did not end by itself, see `Solution.unsettled`.
        warning: the first failure or notice.
    """

    classes: Tensor
    evaluations: Tensor
    unsettled: int
    warning: str | None

    @classmethod
    def of(cls, model: ImageModel, batches: Batches, solver_config: SolverConfig | None = None) -> Answers:
        classes, evaluations, unsettled, warnings = [], [], 0, []
        for batch in batches:
            output = model(batch["pixel_values"], solver_config=solver_config, on_failure="ignore", return_dict=True)
            logits, solution = output.logits, output.trajectory
            classes.append(torch.where(logits.isfinite().all(dim=-1), logits.argmax(dim=-1), -1).cpu())
            nfe = torch.full((len(logits),), float(solution.stats.nfe))
            evaluations.append(nfe if solution.evaluations is None else solution.evaluations.double().cpu())
            unsettled += int(solution.count_unsettled())
            warnings.append(solution.failure or solution.notice)
        return cls(torch.cat(classes), torch.cat(evaluations), unsettled, next(filter(None, warnings), None))


def hash_batches(batches: Iterable[Mapping[str, Tensor]]) -> str:
    """SHA-256 of pixels and labels."""
    digest = hashlib.sha256()
    for batch in batches:
        for name in ("pixel_values", "labels"):
            digest.update(batch[name].cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def measure_other_solvers(
    model: OdeViTForImageClassification, batches: Batches, usual: Tensor, labels: Tensor
) -> list[dict[str, Any]]:
    """Accuracy and share of changed answers with half and twice the steps, and with other solvers.

    Settings that the depth refuses are left out.
    """
    own, rows = model.solver_config, []
    steps = sorted({max(1, own.steps // 2), 2 * own.steps} - {own.steps}) if own.is_fixed else []
    others: list[tuple[str | None, int | None]] = [(None, number) for number in steps]
    for solver, number in others + [(name, None) for name in SOLVERS_TRIED if name != own.name]:
        try:
            answers = Answers.of(model, batches, model.depth.resolve(solver, number, None))
        except ValueError:  # the depth has no solver, or no other number of steps
            continue
        found = answers.classes
        rows.append(
            {
                "solver": solver or own.name,
                "steps": number or own.steps,
                "nfe": answers.evaluations.mean().item(),
                "top1": (found == labels).double().mean().item(),
                "changed": ((found != usual) | (found < 0)).double().mean().item(),
                "finite": (found >= 0).double().mean().item(),
            }
        )
    return rows


def measure_exponent(model: OdeViTForImageClassification, pixels: Tensor) -> dict[str, Any] | None:
    """The mean of lambda_1 over images after eight horizons, its 95% interval, and the share that is negative.

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
    half = Z * error if error is not None else math.nan
    return [mean - half, mean + half]


def training_peak(task: ClassifierTask, batch: dict[str, Tensor]) -> int | None:
    """Bytes that one forward and backward pass of a training batch needs at its peak; None without CUDA's allocator."""
    network, device = task.network, task.process.device
    if device.type != "cuda":
        return None
    mixed, was_training = task.recipe.train.precision == "bf16", network.training
    solver_config = network.solver_config if network.depth.has_trajectory else None
    try:
        network.train()
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        with torch.random.fork_rng([device]):
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=mixed):
                loss = TrainingLoss.of(task.recipe.train)(network, batch, solver_config)
            loss.backward()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    finally:
        network.zero_grad()
        network.train(was_training)


def milliseconds(models: Mapping[str, ImageModel], pixels: Tensor, rounds: int = ROUNDS) -> dict[str, float]:
    """The least time per image of each model. Models take turns; other load on the machine can only add to a time."""
    times: dict[str, list[float]] = {name: [] for name in models}
    for number in range(rounds + 1):  # the first warms up
        for name, model in models.items():
            wait_for(pixels.device)
            began = time.perf_counter()
            with torch.no_grad():
                model(pixels, on_failure="ignore", return_dict=True)
            wait_for(pixels.device)
            if number:
                times[name].append(1000 * (time.perf_counter() - began) / len(pixels))
    return {name: min(taken) for name, taken in times.items()}
