"""|x(tau_l T) - h_l| and who is right: does a student follow its teacher, and does it matter where it does not?"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from odevit.analysis.subject import Subject
from odevit.distill.alignment import Alignment
from odevit.distill.distances import standstill_distances, teacher_distances
from odevit.distill.paths import pca_paths
from odevit.distill.student import OdeStudent
from odevit.distill.teacher import Teacher
from odevit.report.integration import Passage
from odevit.report.plain import quantiles
from odevit.report.sample import Sample
from odevit.report.significance import Share, paired_error

GROUPS = ("both right", "only teacher", "only student", "both wrong")
BINS = 8
SHOWN = 4
"""Images whose two paths are drawn."""


@torch.no_grad()
def teacher_numbers(
    run: str | os.PathLike[str], subject: Subject, teacher: Teacher, sample: Sample, passage: Passage
) -> dict[str, Any]:
    """Distances at every checkpoint, answers of both, and the paths of a few images (the paper's Fig. 1, 4 and 10)."""
    student = subject.model
    assert isinstance(student, OdeStudent)  # only students have teachers
    alignment, measured = _alignment(run, teacher, student)
    tokens = "cls" if teacher.layout().has_cls else "patches"
    distances = teacher_distances(student, teacher, alignment, sample.batches, tokens=tokens)
    still = standstill_distances(teacher, sample.batches, tokens=tokens)
    told = torch.cat([teacher.logits(batch["pixel_values"]).argmax(dim=-1).cpu() for batch in sample.batches])
    labels, said = sample.labels, passage.logits.argmax(dim=-1)
    groups = _groups(told == labels, said == labels)
    last = distances[-1]
    return {
        "images": len(labels),
        "layers": teacher.num_layers,
        "token": "CLS" if tokens == "cls" else "patches, in the mean",
        "alignment": {"kind": alignment.kind, "measured": measured},
        "agreement": Share(int((told == said).sum()), len(labels)).numbers(),
        "top1": Share(int((told == labels).sum()), len(labels)).numbers(),
        "student_top1": Share(int((said == labels).sum()), len(labels)).numbers(),
        "difference": (said == labels).double().mean().item() - (told == labels).double().mean().item(),
        "difference_error": paired_error(said == labels, told == labels),
        "distances": last,
        "groups": groups,
        "group_names": GROUPS,
        "by_layer": {
            "low": [quantiles(each, 0.1)[0] for each in distances],
            "median": [quantiles(each, 0.5)[0] for each in distances],
            "high": [quantiles(each, 0.9)[0] for each in distances],
            "standstill": [quantiles(each, 0.5)[0] for each in still],
        },
        "tells_disagreement": ranked_above(last[told != said], last[told == said]),
        "bins": distance_bins(last, groups),
        "paths": _paths(student, teacher, alignment, sample),
    }


def distance_bins(distances: Tensor, groups: Tensor) -> list[dict[str, Any]]:
    """How many images of each group lie in each of `BINS` bins with equally many images."""
    edges = torch.tensor(quantiles(distances, *[i / BINS for i in range(BINS + 1)]))
    rows = []
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        inside = (distances >= low) & ((distances <= high) if high == edges[-1].item() else (distances < high))
        counts = {name: int((groups[inside] == i).sum()) for i, name in enumerate(GROUPS)}
        if inside.any():
            rows.append({"low": low, "high": high, "images": int(inside.sum()), **counts})
    return rows


def ranked_above(these: Tensor, those: Tensor) -> float | None:
    """P(a > b) for a of `these` and b of `those`, ties counted half: 1/2 where distance tells nothing."""
    if not len(these) or not len(those):
        return None
    differences = these.unsqueeze(1) - those.unsqueeze(0)
    return ((differences > 0).double() + 0.5 * (differences == 0).double()).mean().item()


def _groups(teacher_right: Tensor, student_right: Tensor) -> Tensor:
    """The number of each image's group in `GROUPS`."""
    return torch.where(
        teacher_right & student_right, 0, torch.where(teacher_right, 1, torch.where(student_right, 2, 3))
    )


def _alignment(run: str | os.PathLike[str], teacher: Teacher, student: OdeStudent) -> tuple[Alignment, bool]:
    """The alignment that the run was trained with; even spacing where it was not kept."""
    path = Path(run) / "alignment.json"
    if path.is_file():
        return Alignment.load(path), True
    return Alignment("uniform", (1.0,) * teacher.num_layers), False


def _paths(student: OdeStudent, teacher: Teacher, alignment: Alignment, sample: Sample) -> dict[str, Any]:
    pixels = sample.pixels(min(SHOWN, len(sample)))
    layout = teacher.layout(pixels)
    tokens = layout.cls if layout.has_cls else layout.patches
    ours = torch.stack([state[:, tokens].mean(dim=1) for state in student.states(pixels).states]).cpu()
    theirs = torch.stack([state[:, tokens].mean(dim=1) for state in teacher.states(pixels)]).cpu()
    paths = pca_paths(ours, theirs)
    labels = sample.labels[: len(pixels)].tolist()
    return {
        "student": paths.student,
        "teacher": paths.teacher,
        "explained": list(paths.explained),
        "meetings": list(alignment.indices(student.encoder.depth.steps)),
        "names": [sample.classes[label] for label in labels],
        "numbers": sample.numbers[: len(pixels)],
    }
