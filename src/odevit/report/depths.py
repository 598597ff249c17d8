"""One model, three depths: what equation, recurrence and equilibrium say of the same images."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from odevit.analysis.depths import FAR, View, three_depths
from odevit.analysis.subject import Subject
from odevit.report.integration import Passage
from odevit.report.sample import Sample
from odevit.report.sweep import ACCURATE

NAMES = {
    "ode": f"equation up to its horizon ({ACCURATE})",
    "recurrent": f"recurrent network, {FAR} horizons",
    "equilibrium": "equilibrium",
}


def depth_numbers(subject: Subject, sample: Sample, passage: Passage, images: int) -> dict[str, Any]:
    """Evaluations, accuracy, and agreement with the model as it integrates by itself, of each meaning of depth."""
    found: dict[str, list[View]] = {}
    for chunk in sample.first(images):
        for name, view in three_depths(subject, chunk["x0"]).items():
            found.setdefault(name, []).append(view)
    rows = [_row(NAMES[name], views, passage.logits, sample.labels) for name, views in found.items()]
    return {"images": min(images, len(sample)), "rows": rows}


def _row(name: str, views: list[View], own: Tensor, labels: Tensor) -> dict[str, Any]:
    logits = torch.cat([view.logits.float().cpu() for view in views])
    own, labels = own[: len(logits)], labels[: len(logits)]
    answers = logits.argmax(dim=-1)
    return {
        "name": name,
        "nfe": torch.cat([view.evaluations.double().cpu() for view in views]).mean().item(),
        "top1": (answers == labels).double().mean().item(),
        "agreement": (answers == own.argmax(dim=-1)).double().mean().item(),
        "difference": (logits - own).abs().amax(dim=-1).median().item(),
        "settled": all(view.settled for view in views),
    }
