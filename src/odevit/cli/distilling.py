"""odevit distill: a teacher -> a student."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from odevit.cli.recipes import RecipeVerb, words_of
from odevit.cli.words import print_table
from odevit.distill.distill_task import comparison, distill_recipe
from odevit.distill.distillation import DistillRecipe, compose_distillation
from odevit.report.student_page import write_report


def distill(overrides: Sequence[str] = (), **settings: Any) -> Path:
    """Distil a teacher into a student without labels and give back the student's folder.

    Args:
        overrides: words as on the command line: `["teacher=FOLDER", "data=FOLDER"]`.
        settings: the same as keywords: `distill(teacher="facebook/dino-vitb16", data="FOLDER")`.
    """
    words = words_of(overrides, settings)
    command = shlex.join(["odevit", "distill", *words])
    return distill_recipe(compose_distillation(words), command=command, then=write_report)


def _show(folder: Path) -> None:
    rows = [
        (
            row["model"],
            f"{row['params']:,}",
            str(row["nfe"]),
            f"{row['milliseconds']:.3f}",
            f"{row['top1']:.2%}",
            "" if row["agreement"] is None else f"{row['agreement']:.2%}",
        )
        for row in comparison(folder)
    ]
    print_table(("", "parameters", "NFE", "ms/image", "top-1", "agreement"), rows, left=("",))


VERB = RecipeVerb(
    "distill", distill, _show, "odevit distill teacher=FOLDER data=FOLDER student.steps=24", DistillRecipe
)
