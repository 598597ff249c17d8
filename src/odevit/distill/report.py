"""report.html of a distillation: one page that needs nothing beside it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from odevit.data import DataSet
from odevit.distill.alignment import Alignment
from odevit.distill.distances import standstill_distances, teacher_distances
from odevit.distill.figures import draw_alignment, draw_distances, draw_paths
from odevit.distill.paths import pca_paths
from odevit.distill.recipe import DistillRecipe
from odevit.distill.student import OdeStudent
from odevit.distill.teacher import Teacher
from odevit.page.picture import picture
from odevit.page.shell import heading, paragraph, whole_page
from odevit.page.table import table
from odevit.train.splits import evaluation_batches

IMAGES = 512
"""Held-out images that distances are measured on, at most."""
SHOWN = 4
"""Images whose paths are drawn; as many as there are colours."""


def write_report(
    recipe: DistillRecipe, teacher: Teacher, data: DataSet, rows: Sequence[Mapping[str, Any]], device: torch.device
) -> Path:
    """Measure a finished student against its teacher on held-out images, draw it, and write the page.

    Args:
        recipe: of the run, whose folder holds the student and everything that was written down.
        teacher: as it taught.
        data: what it taught on.
        rows: models side by side, as `comparison` gives them.
        device: where to measure.
    """
    folder = recipe.folder
    student, alignment = OdeStudent.from_pretrained(folder).to(device), Alignment.load(folder / "alignment.json")
    record = json.loads((folder / "record.json").read_text())
    batches = evaluation_batches(data, "validation", 128, limit=IMAGES, device=device)
    depth, images = student.encoder.depth, len(data.test)
    # A student that was trained to meet the last layer alone may take fewer steps than there are layers to look at.
    steps = max(depth.steps, teacher.num_layers)
    # What training has drawn lies there: its curves, and the bound if one was tracked.
    figures = {path.stem: path.read_bytes() for path in folder.glob("*.png")} | {
        "paths": _png(_paths(student, teacher, next(iter(batches)), data, alignment.indices(steps))),
        "distances": _png(_distances(student, teacher, alignment, batches, steps)),
        "alignment": _png(draw_alignment(alignment, steps, depth.horizon)),
    }
    parts = [
        paragraph(outcome(rows, images, recipe.objective.cross_entropy > 0)),
        side_by_side(rows),
        paragraph(
            f"One run, seed {recipe.seed}, on {record['device']}; one image of {images:,} is {1 / images:.2%}. NFE: "
            "evaluations of the field, or layers. Agreement: the same answer as the teacher's, right or wrong.",
            small=True,
        ),
        heading("Which way they go"),
        picture(
            figures,
            "paths",
            "What becomes of the token that is classified, for a few held-out images, in the plane in which all these "
            "states vary most (the paper's Fig. 1).",
        ),
        heading("How near they come"),
        picture(
            figures,
            "distances",
            "Distance between the student and each layer of its teacher where they should meet, on held-out images. "
            "Dashed: a student that stays at the embedded image.",
        ),
        heading("When they meet"),
        picture(
            figures,
            "alignment",
            f"Layers stand where the teacher's movement has taken them, measured on {recipe.alignment.images} training "
            f"images; the steps that meet them were chosen by alignment.kind={alignment.kind}.",
        ),
        heading("How it was learned"),
        picture(
            figures,
            "curves",
            "The student was chosen by its agreement with the teacher on held-out images, not by labels.",
        ),
    ]
    if "bound" in figures:
        caption = "Distance to every layer while learning, and the bound under which training may stop."
        parts += [heading("How near it could come"), picture(figures, "bound", caption)]
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    parts.append(f'<p class="small"><code>{escape(record["command"] or recipe.name)}</code><br>{escape(versions)}</p>')
    page = folder / "report.html"
    page.write_text(whole_page(f"{recipe.name}: a teacher and its student", parts), encoding="utf-8")
    return page


def outcome(rows: Sequence[Mapping[str, Any]], images: int, supervised: bool) -> str:
    """What came out, in a sentence or two.

    Args:
        rows: models side by side: the teacher first, the distilled student last, between them one from scratch if any.
        images: of the test split.
        supervised: whether labels were looked at.
    """
    teacher, *others, student = rows
    labels = "with labels" if supervised else "without labels"
    said = (
        f"An equation of {student['params']:,} parameters, distilled {labels}, gives the answer of its teacher "
        f"({teacher['params']:,} parameters) on {student['agreement']:.2%} of {images:,} test images. "
        f"It is right on {student['top1']:.2%} of them, the teacher on {teacher['top1']:.2%}"
    )
    for other in others:
        said += f", the same architecture from scratch with labels on {other['top1']:.2%}"
    return said + "."


def side_by_side(rows: Sequence[Mapping[str, Any]]) -> str:
    """The models as a table; what is not known of one is empty."""
    lines = []
    for row in rows:
        agreement = "" if row["agreement"] is None else f"{row['agreement']:.2%}"
        cost = (f"{row['params']:,}", f"{row['nfe']}", f"{row['milliseconds']:.3f}")
        lines.append((row["model"], *cost, f"{row['top1']:.2%}", agreement))
    return table(("", "parameters", "NFE", "ms/image", "top-1", "agreement"), lines)


def _png(figure: Figure) -> bytes:
    figure.savefig(buffer := BytesIO(), format="png")
    return buffer.getvalue()


def _distances(
    student: OdeStudent, teacher: Teacher, alignment: Alignment, batches: Iterable[Mapping[str, Tensor]], steps: int
) -> Figure:
    groups = {"CLS": "cls", "patches": "patches"} if teacher.layout().has_cls else {"patches": "patches"}
    near = {
        name: teacher_distances(student, teacher, alignment, batches, tokens=tokens, steps=steps)
        for name, tokens in groups.items()
    }
    still = {name: standstill_distances(teacher, batches, tokens=tokens) for name, tokens in groups.items()}
    return draw_distances(near, still)


@torch.no_grad()
def _paths(
    student: OdeStudent, teacher: Teacher, batch: Mapping[str, Tensor], data: DataSet, meetings: Sequence[int]
) -> Figure:
    chosen = _one_of_each(batch["labels"])
    pixels = batch["pixel_values"][chosen]
    layout = teacher.layout(pixels)
    # A teacher without CLS classifies what its patches say together.
    tokens = layout.cls if layout.has_cls else layout.patches
    ours = torch.stack([state[:, tokens].mean(dim=1) for state in student.states(pixels, steps=meetings[-1]).states])
    theirs = torch.stack([state[:, tokens].mean(dim=1) for state in teacher.states(pixels)])
    mean, std = (torch.tensor(each, device=pixels.device).view(-1, 1, 1) for each in (data.mean, data.std))
    names = [str(data.classes[label]) for label in batch["labels"][chosen].tolist()]
    return draw_paths(pca_paths(ours.cpu(), theirs.cpu()), meetings, (pixels * std + mean).cpu(), names)


def _one_of_each(labels: Tensor) -> list[int]:
    """The first images of a few classes, so that their paths go apart."""
    first: dict[int, int] = {}
    for number, label in enumerate(labels.tolist()):
        first.setdefault(label, number)
    return list(first.values())[:SHOWN]
