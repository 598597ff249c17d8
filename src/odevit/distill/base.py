"""L(student; teacher): the module and the task that all distillations share."""

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
    """L(student; teacher), as a module for the Trainer: called with a batch, it returns a loss.

    The teacher is not registered as a submodule, so it is not trained, saved or moved with the student.
    """

    # The loss is a mean over the batch; the Trainer must not divide it again.
    accepts_loss_kwargs = False

    def __init__(self, student: Any, teacher: Any, objective: DistillObjective) -> None:
        super().__init__()
        self.student = student
        self.objective = objective
        # In a tuple, so that it is not registered as a submodule.
        self._teacher = (teacher,)

    @property
    def teacher(self) -> Any:
        return self._teacher[0]

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Save the student."""
        self.student.save_pretrained(folder)


class StudentTask(Task[DistillRecipe]):
    """A student whose best weights are those that agree most with its teacher, and that is scored beside it."""

    score_label: ClassVar[str] = "agreement with the teacher (%)"

    network: DistillationModule
    teacher_score: Score
    agreement: float

    @property
    def student(self) -> Any:
        """The student; after the run, with its best weights."""
        return self.network.student

    @property
    def model(self) -> Any:
        return self.student

    @torch.no_grad()
    def with_teacher_labels(self, split: str) -> DataSet:
        """The data with the teacher's predictions as labels of a split, so that accuracy is agreement."""
        predictions = [
            self.network.teacher(batch["pixel_values"]).logits.argmax(-1).cpu()
            for batch in evaluation_batches(self.data, split, 128, device=self.process.device)
        ]
        labelled: Any = {split: getattr(self.data, split).with_labels(torch.cat(predictions))}
        return replace(self.data, **labelled)

    def metrics(self, score: Score) -> dict[str, Any]:
        device = self.process.device
        test = evaluation_batches(self.data, "test", device=device)
        self.teacher_score = evaluate_batches(self.network.teacher, test)
        predicted = evaluation_batches(self.with_teacher_labels("test"), "test", device=device)
        self.agreement = evaluate_batches(self.student, predicted).top1
        return {"agreement": self.agreement, "teacher_top1": self.teacher_score.top1}

    def record_fields(self) -> dict[str, Any]:
        score = self.teacher_score
        uses_labels = any(goal.cross_entropy for goal in self.recipe.objectives.values())
        return {
            **(super().record_fields() if uses_labels else {"labels": 0}),
            "teacher": {
                "source": self.recipe.teacher or "trained by the same command",
                "params": count_parameters(self.network.teacher),
                "nfe": score.nfe,
                "milliseconds": score.milliseconds,
                "top1": score.top1,
            },
        }
