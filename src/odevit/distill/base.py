"""student <- teacher: what all distillations have in common, whatever the student is asked for."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import nn

from odevit.data.images import DataSet
from odevit.distill.distillation import DistillRecipe
from odevit.distill.objective import DistillObjective
from odevit.train.evaluate import Score, evaluate_batches
from odevit.train.runner import count_parameters
from odevit.train.splits import evaluation_batches
from odevit.train.task import Task


class DistillationModule(nn.Module):
    """L(student; teacher), as a module that the Trainer can train, wrap and replay.

    Called with a batch it gives a loss; asked, it is the student. The teacher is no part of it: it is not trained, not
    saved and not moved with it.
    """

    # The loss is a mean over the batch as it came; the Trainer must not divide it again.
    accepts_loss_kwargs = False

    def __init__(self, student: Any, teacher: Any, objective: DistillObjective) -> None:
        super().__init__()
        self.student = student
        self.objective = objective
        # In a tuple, so that it is not registered as a part of this module.
        self._teacher = (teacher,)

    @property
    def teacher(self) -> Any:
        return self._teacher[0]

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Save the student."""
        self.student.save_pretrained(folder)


class StudentTask(Task[DistillRecipe]):
    """A student that is chosen by how often it agrees with its teacher, and scored beside it."""

    score_label: ClassVar[str] = "agreement with the teacher (%)"

    network: DistillationModule
    teacher_score: Score
    agreement: float

    @property
    def student(self) -> Any:
        """The student; once the run is over, with its best weights."""
        return self.network.student

    @property
    def model(self) -> Any:
        return self.student

    @torch.no_grad()
    def with_teacher_labels(self, split: str) -> DataSet:
        """The data with the teacher's answers as the labels of a split: accuracy there is agreement with it."""
        answers = [
            self.network.teacher(batch["pixel_values"]).logits.argmax(-1).cpu()
            for batch in evaluation_batches(self.data, split, 128, device=self.process.device)
        ]
        relabelled: Any = {split: getattr(self.data, split).with_labels(torch.cat(answers))}
        return replace(self.data, **relabelled)

    def metrics(self, score: Score) -> dict[str, Any]:
        device = self.process.device
        self.teacher_score = evaluate_batches(
            self.network.teacher, evaluation_batches(self.data, "test", device=device)
        )
        agreed = evaluation_batches(self.with_teacher_labels("test"), "test", device=device)
        self.agreement = evaluate_batches(self.student, agreed).top1
        return {"agreement": self.agreement, "teacher_top1": self.teacher_score.top1}

    def record_fields(self) -> dict[str, Any]:
        score = self.teacher_score
        return {
            "teacher": {
                "source": self.recipe.teacher or "trained by the same command",
                "params": count_parameters(self.network.teacher),
                "nfe": score.nfe,
                "milliseconds": score.milliseconds,
                "top1": score.top1,
            }
        }

    @property
    def labels(self) -> int:
        return super().labels if any(goal.cross_entropy for goal in self.recipe.objectives.values()) else 0
