"""x_student(t_i; n steps) = x_teacher(t_i; N steps): one equation learns to be answered in fewer evaluations."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from odevit.core.solver_config import SolverConfig
from odevit.data.class_names import align_classes
from odevit.distill.base import DistillationModule, StudentTask
from odevit.errors import ConfigError, with_key_prefix
from odevit.hf.processor import statistics_of
from odevit.loading import load
from odevit.objectives.matching import channel_variance, logit_kl
from odevit.objectives.vectors import at_least_single
from odevit.tokens import Pixels
from odevit.train.evaluate import Score, evaluate_batches
from odevit.train.loss import BatchLoss
from odevit.train.solver_sampling import ListSampler
from odevit.train.splits import evaluation_batches, read_data


class StepDistillation(DistillationModule):
    """L = mean_i |x(t_i) - y(t_i)|^2 / v_i + KL, x in n steps of the student, y in N >= n steps of the teacher.

    Step distillation, as diffusion and flow matching have it (Salimans and Ho 2022; Song et al. 2023). The survey's
    last section names it among what may find "renewed relevance when brought back". The student begins as the teacher
    and meets its states at the ends of its own, longer steps: at once, not by halving again and again.
    """

    @property
    def solver_config(self) -> SolverConfig:
        return self.student.solver_config

    def target(self, pixels: Pixels, solver_config: SolverConfig) -> tuple[tuple[Tensor, ...], Tensor]:
        """The teacher's states at the ends of the steps of a way, and its logits."""
        own, each = self.teacher.solver_config, max(1, -(-self.teacher.solver_config.steps // solver_config.steps))
        fine = own.replace(steps=each * solver_config.steps, horizon=solver_config.horizon, grid=solver_config.grid)
        with torch.no_grad():
            solution = self.teacher.depth(self.teacher.embed(pixels), fine, save=range(each, fine.steps + 1, each))
            return solution.states, self.teacher.readout(solution.state)

    def forward(
        self, pixel_values: Pixels, labels: Tensor | None = None, *, solver_config: SolverConfig | None = None
    ) -> BatchLoss:
        """The loss of a batch that the student goes through in this way, and its weighted parts by name."""
        goal, solver_config = self.objective, self.solver_config if solver_config is None else solver_config
        states, logits = self.target(pixel_values, solver_config)
        solution = self.student.depth(
            self.student.embed(pixel_values), solver_config, save=range(1, solver_config.steps + 1)
        )
        errors = [
            F.mse_loss(at_least_single(x), at_least_single(y)) / channel_variance(y)
            for x, y in zip(solution.states, states, strict=True)
        ]
        answer = self.student.readout(solution.state)
        parts = {"path": goal.others * torch.stack(errors).mean()}
        parts["logits"] = goal.logits * logit_kl(answer, logits, goal.temperature)["loss"]
        if goal.cross_entropy and labels is not None:
            parts["cross_entropy"] = goal.cross_entropy * F.cross_entropy(answer.float(), labels)
        return BatchLoss(torch.stack(list(parts.values())).sum(), {name: p.detach() for name, p in parts.items()})


class StepDistillationTask(StudentTask):
    """A model of ours that learns to answer in few steps what it answers in many, and to go on answering in many."""

    card: ClassVar[str] = "distill/fewer_steps.md.j2"

    network: StepDistillation

    def build(self) -> None:
        recipe, device = self.recipe, self.process.device
        teacher: Any = load(recipe.teacher)
        teacher.requires_grad_(False).to(device)
        data = read_data(recipe, teacher.image_processor)
        data = align_classes(data, teacher.classes, "the teacher", "give data of its classes with data=")
        seen = statistics_of(teacher.image_processor)
        self.data = replace(data, mean=seen.mean, std=seen.std)
        student = copy.deepcopy(teacher).requires_grad_(True)
        asked = {name: vars(recipe.student)[name] for name in ("steps", "solver", "grid")}
        with with_key_prefix("student", asked):
            solver_config = teacher.solver_config.replace(
                **{name: value for name, value in asked.items() if value is not None}
            )
        if not solver_config.is_fixed:
            problem = (
                f"student.steps={solver_config.steps} was asked of {solver_config.name}, which chooses its steps "
                "itself; give a solver of fixed steps, such as student.solver=heun"
            )
            raise ConfigError("the student", [problem])
        student.config.update({"steps": solver_config.steps, "solver": solver_config.name, "grid": solver_config.grid})
        student.depth.solver_config = solver_config
        if recipe.train.checkpointing:
            student.gradient_checkpointing_enable()
        self.network = StepDistillation(student, teacher, recipe.objective)
        self.make_batches(self.with_teacher_labels("validation"))
        few = [solver_config.replace(steps=steps) for steps in recipe.train.steps or [solver_config.steps]]
        # As often in many steps as in few: one checkpoint keeps both.
        self.sampler = ListSampler((*few, *[teacher.solver_config] * len(few)), recipe.seed)

    def metrics(self, score: Score) -> dict[str, Any]:
        figures = super().metrics(score)
        teacher, test = self.network.teacher, evaluation_batches(self.data, "test", device=self.process.device)
        # The same steps without learning, and the student in as many steps as its teacher.
        self.untaught = evaluate_batches(teacher, test, solver_config=self.network.solver_config).top1
        self.many = evaluate_batches(self.student, test, solver_config=teacher.solver_config).top1
        return {**figures, "untaught_top1": self.untaught, "many_steps_top1": self.many}

    def record_fields(self) -> dict[str, Any]:
        return {
            **super().record_fields(),
            "way": self.network.solver_config.to_dict(),
            "teacher_way": self.network.teacher.solver_config.to_dict(),
        }

    def summary(self, score: Score) -> str:
        return (
            f"test top-1 {score.top1:.2%} in {score.nfe} evaluations (teacher {self.teacher_score.top1:.2%} in "
            f"{self.teacher_score.nfe}, {self.untaught:.2%} in as few), {self.many:.2%} in the teacher's steps; "
            f"agreement {self.agreement:.2%} of {score.images:,} images"
        )
