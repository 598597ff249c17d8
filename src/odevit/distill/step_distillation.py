"""x_student(t_i; n steps) = x_teacher(t_i; N steps): an ODE-ViT learns to give its answer in fewer evaluations."""

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
from odevit.train.schedule import ListSampler
from odevit.train.splits import evaluation_batches, read_data


class StepDistillation(DistillationModule):
    """L = mean_i |x(t_i) - y(t_i)|^2 / v_i + KL, x in n steps of the student, y in N >= n steps of the teacher.

    Step distillation, as in diffusion and flow matching (Salimans and Ho 2022; Song et al. 2023). The student starts
    with the teacher's weights and is compared with it at the end of each of its own, longer steps, without halving the
    number of steps again and again.
    """

    @property
    def solver_config(self) -> SolverConfig:
        return self.student.solver_config

    @torch.no_grad()
    def target(self, pixels: Pixels, solver_config: SolverConfig) -> tuple[tuple[Tensor, ...], Tensor]:
        """The teacher's states at the ends of the student's steps, and its logits."""
        own, steps = self.teacher.solver_config, solver_config.steps
        factor = max(1, -(-own.steps // steps))  # teacher steps in one of the student's, rounded up
        fine = own.replace(steps=factor * steps, horizon=solver_config.horizon, grid=solver_config.grid)
        save = range(factor, fine.steps + 1, factor)
        solution = self.teacher.follow(self.teacher.embed(pixels), fine, save=save)
        return solution.states, self.teacher.readout(solution.state)

    def forward(
        self, pixel_values: Pixels, labels: Tensor | None = None, *, solver_config: SolverConfig | None = None
    ) -> BatchLoss:
        """The loss of a batch with these solver settings of the student, and its weighted parts by name."""
        objective = self.objective
        solver_config = self.solver_config if solver_config is None else solver_config
        states, target_logits = self.target(pixel_values, solver_config)
        save = range(1, solver_config.steps + 1)
        solution = self.student.follow(self.student.embed(pixel_values), solver_config, save=save)
        errors = [
            F.mse_loss(at_least_single(x), at_least_single(y)) / channel_variance(y)
            for x, y in zip(solution.states, states, strict=True)
        ]
        logits = self.student.readout(solution.state)
        losses = {"path": objective.others * torch.stack(errors).mean()}
        losses["logits"] = objective.logits * logit_kl(logits, target_logits, objective.temperature)["loss"]
        if objective.cross_entropy and labels is not None:
            losses["cross_entropy"] = objective.cross_entropy * F.cross_entropy(logits.float(), labels)
        total = torch.stack(list(losses.values())).sum()
        return BatchLoss(total, {name: loss.detach() for name, loss in losses.items()})


class StepDistillationTask(StudentTask):
    """An ODE-ViT that learns to predict in few steps what it predicts in many, and keeps its accuracy in many."""

    card: ClassVar[str] = "distill/fewer_steps.md.j2"

    network: StepDistillation

    def build(self) -> None:
        recipe, device = self.recipe, self.process.device
        teacher: Any = load(recipe.teacher)
        teacher.requires_grad_(False).to(device)
        data = read_data(recipe, teacher.image_processor)
        data = align_classes(data, teacher.classes, "the teacher", "give data of its classes with data=")
        statistics = statistics_of(teacher.image_processor)
        self.data = replace(data, mean=statistics.mean, std=statistics.std)
        student = copy.deepcopy(teacher).requires_grad_(True)
        given = {name: vars(recipe.student)[name] for name in ("steps", "solver", "grid")}
        with with_key_prefix("student", given):
            changes = {name: value for name, value in given.items() if value is not None}
            solver_config = teacher.solver_config.replace(**changes)
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
        self._make_batches(self.with_teacher_labels("validation"))
        few = [solver_config.replace(steps=steps) for steps in recipe.train.steps or [solver_config.steps]]
        # Half of the batches in the teacher's steps, so that the student stays accurate in both.
        self.sampler = ListSampler((*few, *[teacher.solver_config] * len(few)), recipe.seed)

    def metrics(self, score: Score) -> dict[str, Any]:
        metrics = super().metrics(score)
        teacher, test = self.network.teacher, evaluation_batches(self.data, "test", device=self.process.device)
        # The teacher in the student's steps, and the student in the teacher's.
        self.untaught = evaluate_batches(teacher, test, solver_config=self.network.solver_config).top1
        self.many = evaluate_batches(self.student, test, solver_config=teacher.solver_config).top1
        return {**metrics, "untaught_top1": self.untaught, "many_steps_top1": self.many}

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
