"""x_student(t_i; n steps) = x_teacher(t_i; N steps): one equation learns to be answered in fewer evaluations."""

from __future__ import annotations

import copy
import os
from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from odevit.data import DataSet, numbered_as
from odevit.distill.distillation import DistillRecipe
from odevit.distill.objective import DistillObjective
from odevit.errors import ConfigError, typed_as
from odevit.model import Askable, load
from odevit.model.processor import statistics_of
from odevit.objectives import logit_kl, spread
from odevit.objectives.vectors import at_least_single
from odevit.solver import Solution, Way
from odevit.tokens import Logits, Pixels
from odevit.train.evaluate import Score, evaluate_batches
from odevit.train.life import count_parameters
from odevit.train.loss import BatchLoss
from odevit.train.splits import evaluation_batches, read_data
from odevit.train.task import Task
from odevit.train.ways import ListedWays


class FewerSteps(nn.Module):
    """L = mean_i |x(t_i) - y(t_i)|^2 / v_i + KL, x in n steps of the student, y in N >= n steps of the teacher.

    Step distillation, as diffusion and flow matching have it (Salimans and Ho 2022; Song et al. 2023). The survey's
    last section names it among what may find "renewed relevance when brought back". The student begins as the teacher
    and meets its states at the ends of its own, longer steps: at once, not by halving again and again.
    """

    accepts_loss_kwargs = False

    def __init__(self, student: Any, teacher: Askable, objective: DistillObjective) -> None:
        super().__init__()
        self.student = student
        self.objective = objective
        # In a tuple, so that it is no part of this module: it is neither trained nor saved with it.
        self._teacher = (teacher,)

    @property
    def teacher(self) -> Any:
        return self._teacher[0]

    @property
    def way(self) -> Way:
        return self.student.way

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Save the student."""
        self.student.save_pretrained(folder)

    def ask(self, pixels: Pixels, way: Way | None = None, **options: Any) -> tuple[Logits, Solution]:
        """The student's answer."""
        return self.student.ask(pixels, way, **options)

    def target(self, pixels: Pixels, way: Way) -> tuple[tuple[Tensor, ...], Tensor]:
        """The teacher's states at the ends of the steps of a way, and its logits."""
        own, each = self.teacher.way, max(1, -(-self.teacher.way.steps // way.steps))
        fine = own.but(steps=each * way.steps, horizon=way.horizon, grid=way.grid)
        with torch.no_grad():
            solution = self.teacher.depth(self.teacher.embed(pixels), fine, save=range(each, fine.steps + 1, each))
            return solution.states, self.teacher.readout(solution.state)

    def forward(self, pixel_values: Pixels, labels: Tensor | None = None, *, way: Way | None = None) -> BatchLoss:
        """The loss of a batch that the student goes through in this way, and its weighted parts by name."""
        goal, way = self.objective, self.way if way is None else way
        states, logits = self.target(pixel_values, way)
        solution = self.student.depth(self.student.embed(pixel_values), way, save=range(1, way.steps + 1))
        errors = [
            F.mse_loss(at_least_single(x), at_least_single(y)) / spread(y)
            for x, y in zip(solution.states, states, strict=True)
        ]
        answer = self.student.readout(solution.state)
        parts = {"path": goal.others * torch.stack(errors).mean()}
        parts["logits"] = goal.logits * logit_kl(answer, logits, goal.temperature)["loss"]
        if goal.cross_entropy and labels is not None:
            parts["cross_entropy"] = goal.cross_entropy * F.cross_entropy(answer.float(), labels)
        return BatchLoss(torch.stack(list(parts.values())).sum(), {name: p.detach() for name, p in parts.items()})


class FewerStepsTask(Task[DistillRecipe]):
    """A model of ours that learns to answer in few steps what it answers in many, and to go on answering in many."""

    card: ClassVar[str] = "distill/fewer_steps.md.j2"
    score_label: ClassVar[str] = "agreement with the teacher (%)"

    network: FewerSteps

    @property
    def model(self) -> Any:
        return self.network.student

    def build(self) -> None:
        recipe, device = self.recipe, self.place.device
        teacher: Any = load(recipe.teacher)
        teacher.requires_grad_(False).to(device)
        data = read_data(recipe, teacher.image_processor)
        data = numbered_as(data, teacher.classes, "the teacher", "give data of its classes with data=")
        seen = statistics_of(teacher.image_processor)
        self.data = replace(data, mean=seen.mean, std=seen.std)
        student = copy.deepcopy(teacher).requires_grad_(True)
        asked = {name: vars(recipe.student)[name] for name in ("steps", "solver", "grid")}
        with typed_as("student", asked):
            way = teacher.way.but(**{name: value for name, value in asked.items() if value is not None})
        if not way.is_fixed:
            raise ConfigError(
                "the student",
                [
                    f"student.steps={way.steps} was asked of {way.name}, which chooses its steps itself; give a solver "
                    "of fixed steps, such as student.solver=heun"
                ],
            )
        student.config.update({"steps": way.steps, "solver": way.name, "grid": way.grid})
        student.depth.way = way
        if recipe.train.checkpointing:
            student.gradient_checkpointing_enable()
        self.network = FewerSteps(student, teacher, recipe.objective)
        self.make_batches(self._answered("validation"))
        few = [way.but(steps=steps) for steps in recipe.train.steps or [way.steps]]
        # As often in many steps as in few: one checkpoint keeps both.
        self.sampler = ListedWays((*few, *[teacher.way] * len(few)), recipe.seed)

    @torch.no_grad()
    def _answered(self, split: str) -> DataSet:
        """The data with the teacher's own answers as the labels of a split."""
        answers = [
            self.network.teacher.ask(batch["pixel_values"])[0].argmax(-1).cpu()
            for batch in evaluation_batches(self.data, split, 128, device=self.place.device)
        ]
        relabelled: Any = {split: getattr(self.data, split).relabelled(torch.cat(answers))}
        return replace(self.data, **relabelled)

    @torch.no_grad()
    def figures(self, score: Score) -> dict[str, Any]:
        teacher, device = self.network.teacher, self.place.device
        test = evaluation_batches(self.data, "test", device=device)
        agreed = evaluation_batches(self._answered("test"), "test", device=device)
        self.teacher_score = evaluate_batches(teacher, test)
        # The same steps without learning, and the student in as many steps as its teacher.
        self.untaught = evaluate_batches(teacher, test, way=self.network.way).top1
        self.many = evaluate_batches(self.network, test, way=teacher.way).top1
        self.agreement = evaluate_batches(self.network, agreed).top1
        return {
            "agreement": self.agreement,
            "teacher_top1": self.teacher_score.top1,
            "untaught_top1": self.untaught,
            "many_steps_top1": self.many,
        }

    def facts(self) -> dict[str, Any]:
        score = self.teacher_score
        return {
            "teacher": {
                "source": self.recipe.teacher,
                "params": count_parameters(self.network.teacher),
                "nfe": score.nfe,
                "milliseconds": score.milliseconds,
                "top1": score.top1,
            },
            "way": self.network.way.numbers(),
            "teacher_way": self.network.teacher.way.numbers(),
        }

    @property
    def labels(self) -> int:
        return super().labels if self.recipe.objective.cross_entropy else 0

    def closing(self, score: Score) -> str:
        return (
            f"test top-1 {score.top1:.2%} in {score.nfe} evaluations (teacher {self.teacher_score.top1:.2%} in "
            f"{self.teacher_score.nfe}, {self.untaught:.2%} in as few), {self.many:.2%} in the teacher's steps; "
            f"agreement {self.agreement:.2%} of {score.images:,} images"
        )
