"""report.html of a distillation: a student and its teacher on held-out images."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from odevit.analysis.base import frozen
from odevit.distill.distill_task import DistillTask, comparison
from odevit.plotting import BLUE, ORANGE, finish_figure, make_figure
from odevit.report.early_stopping import EarlyStopping
from odevit.report.page import annotate
from odevit.report.section import Figures, Numbers, Progress, Provenance, Section, draw_all, measure_all, write_page
from odevit.report.study import Study, draw_sample
from odevit.report.teacher_match import SHOWN, TeacherMatch
from odevit.report.trajectories import LINK, STUDENT, TEACHER

IMAGES = 512
"""Held-out images that distances are measured on, at most."""


def write_report(task: DistillTask) -> Path:
    """Measure a finished student against its teacher on held-out images, draw it, and write report.html."""
    recipe, folder, progress = task.recipe, task.folder.path, Progress()
    record = json.loads((folder / "record.json").read_text())
    sections = [TeacherMatch(), StepAlignment(), TrainingCurves(), EarlyStopping(), Provenance()]
    with frozen(task.student):
        sample = draw_sample(task.student, task.data, "validation", IMAGES, recipe.seed, task.process.device)
        numbers = measure_all(sections, Study(folder, task.student, sample, task.teacher, seed=recipe.seed), progress)
    numbers["alignment"]["images"] = min(recipe.alignment.images, len(task.data.train))
    numbers |= {
        "models": comparison(folder),
        "images": len(task.data.test),
        "supervised": task.record_fields()["labels"] > 0,
        "device": record["device"],
        "versions": record["versions"],
        "command": record["command"] or recipe.name,
        "training": record["seconds"],
        "seconds": progress.to_dict(),
    }
    figures = draw_all(sections, numbers, sample.pictures(SHOWN)) | {"curves": (folder / "curves.png").read_bytes()}
    title = f"{recipe.name}: a teacher and its student"
    page = write_page(task.folder.register("report.html"), title, "student.html.j2", sections, numbers, figures)
    print(f"report: {page}")
    return page


class StepAlignment(Section):
    """The teacher's layers by the distance its states have moved, and the student's steps for them."""

    title = "Which step matches which layer"
    text = """
{% call picture("alignment") %}Layers are placed by the distance that the teacher's states have moved, measured on
{{ alignment.images | count }} training images; their steps were chosen by
alignment.kind={{ alignment.kind }}.{% endcall %}
"""

    def measure(self, study: Study) -> dict[str, Any]:
        alignment, horizon = study.alignment[0], study.solver_config.horizon
        steps = study.aligned_config.steps
        travelled = torch.tensor((0.0, *alignment.distances)).cumsum(0)
        return {
            "alignment": {
                "kind": alignment.kind,
                "layers": horizon * travelled / travelled[-1],
                "times": torch.linspace(0, horizon, steps + 1),
                "meetings": [0, *alignment.indices(steps)],
            }
        }

    def draw(self, numbers: Numbers, pictures: Tensor) -> Figures:
        alignment = numbers["alignment"]
        return {"alignment": draw_alignment(alignment["layers"], alignment["times"], alignment["meetings"])}


class TrainingCurves(Section):
    """The curves of the training."""

    title = "Training"
    text = """
{% call picture("curves") %}The best weights were selected by agreement with the teacher on held-out images, without
labels.{% endcall %}
"""


def draw_alignment(layers: Sequence[float], times: Sequence[float], layer_steps: Sequence[int]) -> Figure:
    """The layers of the teacher above the steps of the student, a line from each layer to its step."""
    figure, (axes,) = make_figure(2.3)
    for layer, step in enumerate(layer_steps):
        axes.plot([times[step], layers[layer]], [0, 1], **LINK)
        annotate(axes, f"{layer}", (layers[layer], 1), (0, 8), ha="center")
        annotate(axes, f"{step}", (times[step], 0), (0, -16), ha="center")
    axes.plot(layers, [1] * len(layers), **TEACHER, color=ORANGE, clip_on=False)
    axes.plot(times, [0] * len(times), **STUDENT, color=BLUE, clip_on=False)
    axes.set_yticks([0, 1], ["student's steps", "teacher's layers"])
    axes.set(ylim=(-0.6, 1.5), xlabel="integration time t")
    axes.spines["left"].set_visible(False)
    axes.tick_params(left=False)
    return finish_figure(figure)
