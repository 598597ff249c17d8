"""top-k = share of images whose label is among the k likeliest: the accuracy of a model and its cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from odevit.core.base import Solver
from odevit.core.solver_config import SolverConfig
from odevit.data.batches import Batches
from odevit.solvers.early_exit import Stop

RANKS = (1, 3, 5)


@dataclass(frozen=True)
class Score:
    """Accuracies as fractions, and their cost.

    Args:
        top1, top3, top5: share of images whose label is among the 1, 3, 5 likeliest.
        loss: mean cross entropy.
        images: how many were scored.
        nfe: field evaluations of one forward pass; the mean over images if each stops by itself.
        milliseconds: time per image, including making the batches.
        finite: share of images with finite logits; the others count as wrong.
        unsettled: share of images whose trajectory did not converge, see `Solution.unsettled`.
        failure: why trajectories failed or did not converge, in the first batch where one did; else empty.
        classes: the number of classes; 0 if it is unknown.
    """

    top1: float
    top3: float
    top5: float
    loss: float
    images: int
    nfe: float
    milliseconds: float
    finite: float = 1.0
    failure: str = ""
    classes: int = 0
    unsettled: float = 0.0

    @property
    def warning(self) -> str:
        """A warning about failed and unconverged trajectories of all images; empty without any."""
        if not self.failure:
            return ""
        parts = [self.failure]
        if self.unsettled:
            parts.append(f"In all, {self.unsettled:.1%} of the {self.images:,} images.")
        if self.finite < 1:
            parts.append(f"{1 - self.finite:.1%} of the images have no answer and count as wrong.")
        return " ".join(parts)

    @property
    def ranks(self) -> dict[str, float]:
        """Top-k by name, for the k below the number of classes."""
        shares = zip(RANKS, (self.top1, self.top3, self.top5), strict=True)
        return {f"top-{k}": share for k, share in shares if k == 1 or not 0 < self.classes <= k}


@torch.no_grad()
def evaluate_batches(
    model: Any,
    batches: Batches,
    *,
    solver_config: SolverConfig | None = None,
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
        model: called with pixels and options, returns an output with `logits` and `trajectory`; its mode is restored.
        batches: without augmentation.
        solver_config: solver, steps and horizon; those of the model unless given.
        solver, steps, horizon: the same one by one; those not given are the model's own.
        stop: when to stop each image, for models with early exit.
        depth: another depth with the same weights.
        autocast: dtype of mixed precision, or None.
        reduce: adds up a tensor of counts over processes.
    """
    if solver_config is None and (solver, steps, horizon) != (None, None, None):
        solver_config = model.depth.resolve(solver, steps, horizon)
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    # Hits per rank, unsettled images, evaluations, finite answers, loss, images.
    totals = torch.zeros(len(RANKS) + 5, dtype=torch.float64, device=device)
    failures: list[str] = []
    classes = 0

    def answer(pixels: Tensor) -> tuple[Tensor, Tensor | int, Tensor]:
        with torch.autocast(device.type, dtype=autocast, enabled=autocast is not None):
            # Failures are counted at the end, because looking at states waits for the device.
            output = model(
                pixels, solver_config=solver_config, stop=stop, depth=depth, on_failure="ignore", return_dict=True
            )
        logits, solution = output.logits, output.trajectory
        if sentence := solution.failure or solution.notice:
            failures.append(sentence)
        per_image = solution.evaluations
        evaluations = len(pixels) * solution.stats.nfe if per_image is None else per_image.sum()
        return logits.float(), evaluations, solution.count_unsettled()

    try:
        first = next(iter(batches), None)
        if first is not None:
            answer(first["pixel_values"])  # compilation and lazy allocations are over before the clock starts
        wait_for(device)
        started = time.perf_counter()
        for batch in batches:
            labels = batch["labels"]
            logits, evaluations, unsettled = answer(batch["pixel_values"])
            likeliest = logits.topk(min(max(RANKS), logits.shape[-1]), dim=-1).indices
            finite = logits.isfinite().all(dim=-1)
            hits = (likeliest == labels.unsqueeze(-1)) & finite.unsqueeze(-1)
            for i, rank in enumerate(RANKS):
                totals[i] += hits[:, :rank].any(dim=-1).sum()
            totals[-5] += unsettled.to(device)
            totals[-4] += evaluations
            totals[-3] += finite.sum()
            totals[-2] += F.cross_entropy(logits, labels, reduction="sum")
            totals[-1] += len(labels)
            classes = logits.shape[-1]
        wait_for(device)
        seconds = time.perf_counter() - started
    finally:
        model.train(was_training)
    if reduce is not None:
        totals = reduce(totals)
    *hits_by_rank, astray, evaluations, finite_answers, loss, count = totals.tolist()
    if count == 0:
        raise ValueError("there is nothing to evaluate on: the split is empty")
    top1, top3, top5 = (hits / count for hits in hits_by_rank)
    nfe = evaluations / count
    # 12, not 12.0: a model that treats every image alike makes a whole number of evaluations.
    nfe = int(nfe) if nfe == int(nfe) else nfe
    if finite_answers < count:  # read once at the end, because reading waits for the device
        failures.append("The states are not finite. Take more steps, a shorter horizon, or another solver.")
    return Score(
        top1,
        top3,
        top5,
        loss=loss / count,
        images=int(count),
        nfe=nfe,
        milliseconds=1000 * seconds / count,
        finite=finite_answers / count,
        failure="".join(failures[:1]),
        classes=classes,
        unsettled=astray / count,
    )


def wait_for(device: torch.device) -> None:
    """Until the device has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
