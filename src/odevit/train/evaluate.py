"""top-k = share of images whose label is among the k likeliest: what a model is worth, and what it costs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from odevit.data.batches import Batches
from odevit.solver import Solver, Stop

RANKS = (1, 3, 5)


@dataclass(frozen=True)
class Score:
    """Accuracies as fractions, with what they cost.

    Args:
        top1, top3, top5: share of images whose label is among the 1, 3, 5 likeliest.
        loss: mean cross entropy.
        images: how many were looked at.
        nfe: field evaluations of one forward pass; the mean over images where each stops by itself.
        milliseconds: time of an image, in batches of the size used, making the batches included.
    """

    top1: float
    top3: float
    top5: float
    loss: float
    images: int
    nfe: float
    milliseconds: float


@torch.no_grad()
def evaluate_batches(
    model: Any,
    batches: Batches,
    *,
    solver: str | Solver | None = None,
    steps: int | None = None,
    horizon: float | None = None,
    stop: str | Stop | None = None,
    depth: str | None = None,
    autocast: torch.dtype | None = None,
    reduce: Callable[[Tensor], Tensor] | None = None,
) -> Score:
    """Score a model on batches with integer labels.

    Args:
        model: gives `logits` and `stats` for images and a way to integrate; left in the mode it was found in.
        batches: without augmentation.
        solver, steps, horizon: how to integrate; the model's own unless given.
        stop: when each image has gone far enough, for models that can leave early.
        depth: another meaning of depth around the same weights.
        autocast: dtype of mixed precision, or None.
        reduce: adds a tensor of counts up over processes.
    """
    device = model.device
    was_training = model.training
    model.eval()
    correct = torch.zeros(len(RANKS) + 3, dtype=torch.float64, device=device)  # ranks, evaluations, loss, images
    special = {key: value for key, value in (("stop", stop), ("depth", depth)) if value is not None}

    def logits_of(images: Tensor) -> tuple[Tensor, Tensor | int]:
        with torch.autocast(device.type, dtype=autocast, enabled=autocast is not None):
            output = model(images, solver=solver, steps=steps, horizon=horizon, **special)
        each = output.trajectory.evaluations if special else None
        return output.logits.float(), len(images) * output.stats.nfe if each is None else each.sum()

    try:
        first = next(iter(batches), None)
        if first is not None:
            logits_of(first["pixel_values"])  # compilation and lazy allocations are over before the clock starts
        _wait_for(device)
        started = time.perf_counter()
        for batch in batches:
            labels = batch["labels"]
            logits, evaluations = logits_of(batch["pixel_values"])
            likeliest = logits.topk(min(max(RANKS), logits.shape[-1]), dim=-1).indices
            hits = likeliest == labels.unsqueeze(-1)
            for i, rank in enumerate(RANKS):
                correct[i] += hits[:, :rank].any(dim=-1).sum()
            correct[-3] += evaluations
            correct[-2] += F.cross_entropy(logits, labels, reduction="sum")
            correct[-1] += len(labels)
        _wait_for(device)
        seconds = time.perf_counter() - started
    finally:
        model.train(was_training)
    if reduce is not None:
        correct = reduce(correct)
    *hits_by_rank, evaluations, loss, count = correct.tolist()
    if count == 0:
        raise ValueError("there is nothing to evaluate on: the split is empty")
    top1, top3, top5 = (each / count for each in hits_by_rank)
    return Score(
        top1=top1,
        top3=top3,
        top5=top5,
        loss=loss / count,
        images=int(count),
        nfe=_whole(evaluations / count),
        milliseconds=1000 * seconds / count,
    )


def _whole(value: float) -> float:
    """12 and not 12.0: a model that does the same for every image makes a whole number of evaluations."""
    return int(value) if value == int(value) else value


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
