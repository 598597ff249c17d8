"""report.html of a distillation: the same sections around a student and its teacher, on held-out images."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from odevit.analysis.untouched import untouched
from odevit.distill.alignment import Alignment
from odevit.look import BLUE, ORANGE, finish, make_figure
from odevit.report.early_stopping import EarlyStopping
from odevit.report.making import Making
from odevit.report.page import Block, Picture, Table, Text
from odevit.report.progress import Progress
from odevit.report.section import Numbers, Section, measure_all, write_page
from odevit.report.study import Study, draw_sample
from odevit.report.teaching import SHOWN, Teaching
from odevit.report.trajectories import STUDENT, TEACHER, THREAD

IMAGES = 512
"""Held-out images that distances are measured on, at most."""


class Meetings(Section):
    """Two rails: the teacher's layers, and the steps that meet them."""

    title = "When they meet"

    def measure(self, study: Study) -> dict[str, Any]:
        alignment, _ = study.alignment
        steps = max(study.way.steps, len(alignment.distances))
        layers = torch.tensor((0.0, *alignment.distances)).cumsum(0)
        return {
            "meetings": {
                "kind": alignment.kind,
                "layers": study.way.horizon * layers / layers[-1],
                "steps": torch.linspace(0, study.way.horizon, steps + 1),
                "meetings": [0, *alignment.indices(steps)],
            }
        }

    def draw(self, numbers: Numbers, pictures: Tensor) -> dict[str, Figure | bytes]:
        return {"alignment": draw_alignment(numbers["meetings"])}

    def tell(self, numbers: Numbers) -> list[Block]:
        caption = (
            "Layers stand where the teacher's movement has taken them, measured on "
            f"{numbers['recipe']['alignment_images']} training images; the steps that meet them were chosen by "
            f"alignment.kind={numbers['meetings']['kind']}."
        )
        return [Picture("alignment", caption)]
