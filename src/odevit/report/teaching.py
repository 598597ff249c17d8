"""|x(tau_l T) - h_l|, as it is and by |h_l|: does a student follow its teacher, and does it matter where not?"""

from __future__ import annotations

import math
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
    told, norms = _answers_and_norms(teacher, sample, tokens)
    labels, said = sample.labels, passage.logits.argmax(dim=-1)
    groups = _groups(told == labels, said == labels)
    agreed = told == said
    return {
        "images": len(labels),
        "layers": teacher.num_layers,
        "token": "CLS" if tokens == "cls" else "patches, in the mean",
        "alignment": {"kind": alignment.kind, "measured": measured},
        "agreement": Share(int(agreed.sum()), len(labels)).numbers(),
        "top1": Share(int((told == labels).sum()), len(labels)).numbers(),
        "student_top1": Share(int((said == labels).sum()), len(labels)).numbers(),
        "difference": (said == labels).double().mean().item() - (told == labels).double().mean().item(),
        "difference_error": paired_error(said == labels, told == labels),
        "groups": groups,
        "group_names": GROUPS,
        **nearness(distances, still, groups, agreed),
        # Where the teacher's norm depends on who is right, a distance that is not measured by it may say no more.
        "relative": nearness(distances / norms, still / norms, groups, agreed),
        "norms": norms[-1],
        "right_has_larger_norm": ranking(norms[-1][groups == 0], norms[-1][groups != 0]),
        "paths": _paths(student, teacher, alignment, sample),
    }


def nearness(distances: Tensor, still: Tensor, groups: Tensor, agreed: Tensor) -> dict[str, Any]:
    """Distances [layer, image] in numbers, and whether they are smaller where both are right, as the paper claims.

    `right_is_nearer`: P(d > e) for the distance d of an image on which not both are right and e of one on which both
    are, at the last layer, and under `by_layer` at every one.
    """
    last, right = distances[-1], groups == 0
    return {
        "distances": last,
        "by_layer": {
            "low": [quantiles(each, 0.1)[0] for each in distances],
            "median": [quantiles(each, 0.5)[0] for each in distances],
            "high": [quantiles(each, 0.9)[0] for each in distances],
            "standstill": [quantiles(each, 0.5)[0] for each in still],
            "right_is_nearer": [ranking(each[~right], each[right]) for each in distances],
        },
        "tells_disagreement": ranked_above(last[~agreed], last[agreed]),
        "right_is_nearer": ranking(last[~right], last[right]),
        "bins": distance_bins(last, groups),
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
    ordered = those.sort().values
    below, not_above = (torch.searchsorted(ordered, these.contiguous(), right=right) for right in (False, True))
    return ((below + not_above).double().mean() / (2 * len(those))).item()


def ranking(these: Tensor, those: Tensor) -> dict[str, float] | None:
    """P(a > b) and sqrt((m + n + 1) / (12 m n)), the error with which m and n alike images give 1/2 (Mann, Whitney)."""
    value, m, n = ranked_above(these, those), len(these), len(those)
    return None if value is None else {"value": value, "error": math.sqrt((m + n + 1) / (12 * m * n))}


def _groups(teacher_right: Tensor, student_right: Tensor) -> Tensor:
    """The number of each image's group in `GROUPS`."""
    return torch.where(
        teacher_right & student_right, 0, torch.where(teacher_right, 1, torch.where(student_right, 2, 3))
    )


def _answers_and_norms(teacher: Teacher, sample: Sample, tokens: str) -> tuple[Tensor, Tensor]:
    """The teacher's answers [image], and mean over tokens of |h_l| for l = 1..L [layer, image]."""
    answers, norms = [], []
    for batch in sample.batches:
        output = teacher(batch["pixel_values"])
        assert output.logits is not None  # its head is the student's, which has answered
        answers.append(output.logits.argmax(dim=-1).cpu())
        place = getattr(teacher.layout(batch["pixel_values"]), tokens)
        norms.append(torch.stack([h[:, place].float().norm(dim=-1).mean(dim=1) for h in output.states[1:]]).cpu())
    return torch.cat(answers), torch.cat(norms, dim=1)


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
