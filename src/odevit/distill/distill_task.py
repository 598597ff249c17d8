"""teacher, data -> student: a whole distillation, from the original to the comparison."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn
from transformers import TrainerCallback, set_seed

from odevit.data import DataSet, Images
from odevit.distill.alignment import Alignment, layer_distances
from odevit.distill.bound_stopping import BoundStopping
from odevit.distill.distillation import DistillRecipe
from odevit.distill.features import cache_features
from odevit.distill.head import head_parameters
from odevit.distill.step import Distillation
from odevit.distill.teacher import Teacher
from odevit.model import OdeStudent, OdeViTConfig, get_ode_model
from odevit.train.classifier import train_recipe
from odevit.train.evaluate import Score, evaluate_batches
from odevit.train.folder import RECORD
from odevit.train.life import count_parameters, run
from odevit.train.recipe import Recipe
from odevit.train.splits import evaluation_batches, read_data
from odevit.train.task import Task


def distill_recipe(
    recipe: DistillRecipe, command: str = "", then: Callable[[DistillTask], object] | None = None
) -> Path:
    """Distil a teacher into a student as the recipe says and give back the student's folder.

    At the end `then` is called, in the main process, with the finished task, which still holds the student with its
    best weights, the teacher, the data and the alignment: to write a report, say.
    """
    task = DistillTask(recipe)
    folder = run(task, command)
    if recipe.compare:
        trained_part(task, "scratch")
        if task.place.is_main:
            rows = comparison(folder)
            task.folder.own("comparison.json").write_text(json.dumps(rows, indent=2) + "\n")
    if then is not None and task.place.is_main:
        then(task)
    return folder


class DistillTask(Task[DistillRecipe]):
    """A student that learns to follow its teacher's hidden states, without labels unless the objective has them."""

    card: ClassVar[str] = "distill/student.md.j2"
    score_label: ClassVar[str] = "agreement with the teacher (%)"

    network: Distillation
    teacher: Teacher
    alignment: Alignment
    teacher_score: Score

    @property
    def student(self) -> OdeStudent:
        """The student; once the run is over, with its best weights."""
        return self.network.student

    @property
    def model(self) -> OdeStudent:
        return self.student

    def build(self) -> None:
        recipe, device = self.recipe, self.place.device
        source = recipe.teacher or str(trained_part(self, "teacher"))
        set_seed(recipe.seed)
        self.teacher = teacher = Teacher(source)
        self.data = data = teacher.normalised(read_data(recipe, teacher.square_size))
        teacher.check_labels(data.num_classes)
        student = get_ode_model(teacher.model, recipe.student_config(), anatomy=teacher.anatomy)
        for module in (teacher, student):
            nn.Module.to(module, device)
        self.alignment = self._align(student.way.steps)
        features = None
        if recipe.features:
            features = cache_features(teacher, evaluation_batches(data, "train", device=device), recipe.features)
        self.network = Distillation(student, teacher, self.alignment, recipe.objective, features)
        if recipe.train.checkpointing:
            student.gradient_checkpointing_enable()
        # On held-out images the teacher's answers are the labels: the best student is the one that agrees most.
        held_out = answered(teacher, data, "validation", device)
        self.make_batches(held_out, indices=features is not None)
        self.sampler = self.make_sampler(student.way, hold=True)
        self.callbacks = [_Progress(self.network)]
        if recipe.stopping.bound:
            images = next(iter(self.validation))["pixel_values"][:64]
            self.callbacks.append(BoundStopping(self.network, images, recipe.stopping, self.folder))
        if self.place.is_main:
            self.alignment.save(self.folder.own("alignment.json"))
            student.print_summary()

    @torch.no_grad()
    def _align(self, own: int) -> Alignment:
        """Measure how far each layer of the teacher moves its tokens, and align the student with it."""
        recipe, settings = self.recipe, self.recipe.alignment
        batches = evaluation_batches(self.data, "train", 128, limit=settings.images, device=self.place.device)
        tokens = self.teacher.layout().cls if settings.tokens == "cls" else slice(None)
        distances = layer_distances((self.teacher.states(batch["pixel_values"]) for batch in batches), tokens)
        alignment = Alignment(settings.kind, distances, settings.temperature)
        matched = [] if recipe.objective.path == "last" else recipe.train.steps or [own]
        for steps in [*matched, own] if recipe.stopping.bound else matched:
            alignment.indices(steps)  # too few steps for the teacher's layers: say so now, not at the first batch
        return alignment

    def figures(self, score: Score) -> dict[str, Any]:
        device = self.place.device
        test = evaluation_batches(self.data, "test", device=device)
        agreed = evaluation_batches(answered(self.teacher, self.data, "test", device), "test", device=device)
        self.teacher_score = evaluate_batches(self.teacher, test)
        self.agreement = evaluate_batches(self.network, agreed).top1
        return {"agreement": self.agreement, "teacher_top1": self.teacher_score.top1}

    def facts(self) -> dict[str, Any]:
        score = self.teacher_score
        return {
            "teacher": {
                "source": self.recipe.teacher or "trained by the same command",
                "params": count_parameters(self.teacher),
                "nfe": score.nfe,
                "milliseconds": score.milliseconds,
                "top1": score.top1,
            }
        }

    def closing(self, score: Score) -> str:
        return (
            f"test top-1 {score.top1:.2%} (teacher {self.teacher_score.top1:.2%})  agreement {self.agreement:.2%}  "
            f"nfe {score.nfe}  {score.milliseconds:.3f} ms/image"
        )


def comparison(folder: Path) -> list[dict[str, Any]]:
    """Teacher, student from scratch and distilled student side by side, from the records of a run."""
    student = json.loads((folder / RECORD).read_text())
    rows = [{"model": "teacher", "agreement": 1.0, **student["teacher"]}]
    if (folder / "scratch" / RECORD).exists():
        rows.append({"model": "student from scratch", **json.loads((folder / "scratch" / RECORD).read_text())})
    rows.append({"model": "student distilled", **student})
    keys = ("model", "params", "nfe", "milliseconds", "top1", "agreement")
    return [{key: row.get(key) for key in keys} for row in rows]


def trained_part(task: DistillTask, part: str) -> Path:
    """The folder of the teacher or of the student from scratch; one that an interrupted run finished is reused."""
    if task.place.is_main:
        task.folder.own(part)
    inner = part_recipe(task.recipe, part)
    return inner.folder if (inner.folder / RECORD).exists() else train_recipe(inner)


def part_recipe(recipe: DistillRecipe, part: str) -> Recipe:
    """The recipe of the `teacher`, or of the student's architecture from `scratch` for as many steps as the student."""
    model, train = replace(recipe.model), recipe.teacher_train
    if part == "scratch":
        student, train = recipe.student_config(), recipe.train
        teacher = OdeViTConfig(**recipe.model_settings())
        equation = {
            "depth": "ode",
            "horizon": student.horizon or float(teacher.steps),
            "num_register_tokens": teacher.num_register_tokens + student.registers,
            **{name: getattr(student, name) for name in ("solver", "steps", "leak", "norm", "mlp_ratio", "bias")},
        }
        model = replace(model, **equation)
    return Recipe(
        name=f"{recipe.name}/{part}",
        out=str(recipe.folder / part),
        seed=recipe.seed,
        device=recipe.device,
        overwrite=True,
        model=model,
        data=recipe.data,
        train=train,
    )


@torch.no_grad()
def answered(teacher: Teacher, data: DataSet, split: str, device: torch.device) -> DataSet:
    """The data with the teacher's answers as the labels of a split: accuracy on it is agreement with the teacher."""
    images = getattr(data, split)
    if not isinstance(images, Images):
        raise ValueError("agreement with a teacher is measured on images in memory; raise data.resident_limit_gb")
    answers = [
        teacher.logits(batch["pixel_values"]).argmax(-1).cpu()
        for batch in evaluation_batches(data, split, 128, device=device)
    ]
    relabelled: Any = {split: Images(images.pixels, torch.cat(answers))}
    return replace(data, **relabelled)


class _Progress(TrainerCallback):
    """Tells the network which part of the training is over, and holds the head still until its time has come."""

    def __init__(self, network: Distillation) -> None:
        self.network = network
        # Freed now, before the optimiser looks for what is trained.
        self.head = head_parameters(network.student.model) if network.objective.unfreeze_head else []
        for parameter in self.head:
            parameter.requires_grad_(True)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.network.progress = state.global_step / max(1, state.max_steps)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.network.progress < self.network.objective.cross_entropy_from:
            for parameter in self.head:
                parameter.grad = None
