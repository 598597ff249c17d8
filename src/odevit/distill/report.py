"""report.html of a distillation: one page that needs nothing beside it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from io import BytesIO
from pathlib import Path
from string import Template
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
from odevit.train.splits import evaluation_batches

IMAGES = 512
"""Held-out images that distances are measured on, at most."""
SHOWN = 4
"""Images whose paths are drawn; as many as there are colours."""

PAGE = Template("""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>$title</title>
<style>
  body { max-width: 820px; margin: 2rem auto; padding: 0 1rem; font: 16px/1.5 system-ui, sans-serif; color: #222; }
  h1 { font-size: 1.5rem; }  h2 { font-size: 1.15rem; margin-top: 2.2rem; }
  table { border-collapse: collapse; width: 100%; }
  th, td { padding: .35rem .6rem; text-align: right; border-bottom: 1px solid #ddd; }
  th:first-child, td:first-child { text-align: left; }
  figure { margin: 0; }  img { width: 100%; }  .small { font-size: .85rem; color: #666; }
</style>
<h1>$title</h1>
$body
</html>
""")


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
    depth = student.encoder.depth
    # A student that was trained to meet the last layer alone may take fewer steps than there are layers to look at.
    steps = max(depth.steps, teacher.num_layers)
    parts = [
        f"<p>{escape(outcome(rows, len(data.test), recipe.objective.cross_entropy > 0))}</p>",
        table(rows),
        f'<p class="small">One run, seed {recipe.seed}, on {escape(record["device"])}; one image of {len(data.test):,} '
        f"is {1 / len(data.test):.2%}. NFE: evaluations of the field, or layers. Agreement: the same answer as the "
        "teacher's, right or wrong.</p>",
        section(
            "Which way they go",
            _paths(student, teacher, next(iter(batches)), data, alignment.indices(steps)),
            "What becomes of the token that is classified, for a few held-out images, in the plane in which all these "
            "states vary most (the paper's Fig. 1).",
        ),
        section(
            "How near they come",
            _distances(student, teacher, alignment, batches, steps),
            "Distance between the student and each layer of its teacher where they should meet, on held-out images. "
            "Dashed: a student that stays at the embedded image.",
        ),
        section(
            "When they meet",
            draw_alignment(alignment, steps, depth.horizon),
            f"Layers stand where the teacher's movement has taken them, measured on {recipe.alignment.images} training "
            f"images; the steps that meet them were chosen by alignment.kind={alignment.kind}.",
        ),
        section(
            "How it was learned",
            folder / "curves.png",
            "The student was chosen by its agreement with the teacher on held-out images, not by labels.",
        ),
    ]
    if (folder / "bound.png").exists():
        caption = "Distance to every layer while learning, and the bound under which training may stop."
        parts.append(section("How near it could come", folder / "bound.png", caption))
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    parts.append(f'<p class="small">{escape(record["command"] or recipe.name)}<br>{escape(versions)}</p>')
    page = folder / "report.html"
    title = escape(f"{recipe.name}: a teacher and its student")
    page.write_text(PAGE.substitute(title=title, body="\n".join(parts)), encoding="utf-8")
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


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The models side by side, as HTML."""
    head = "".join(f"<th>{name}</th>" for name in ("", "parameters", "NFE", "ms/image", "top-1", "agreement"))
    lines = [
        f"<tr><td>{escape(row['model'])}</td><td>{row['params']:,}</td><td>{row['nfe']}</td>"
        f"<td>{row['milliseconds']:.3f}</td><td>{row['top1']:.2%}</td>"
        f"<td>{'' if row['agreement'] is None else format(row['agreement'], '.2%')}</td></tr>"
        for row in rows
    ]
    return f"<table><tr>{head}</tr>{''.join(lines)}</table>"


def section(title: str, picture: Figure | Path, caption: str) -> str:
    """A heading, a picture inside the page, and what it shows."""
    if isinstance(picture, Path):
        content = picture.read_bytes()
    else:
        buffer = BytesIO()
        picture.savefig(buffer, format="png")
        content = buffer.getvalue()
    source = f"data:image/png;base64,{base64.b64encode(content).decode()}"
    return (
        f'<h2>{escape(title)}</h2>\n<figure><img alt="{escape(title)}" src="{source}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


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
