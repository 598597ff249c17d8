"""teacher, data -> student: a whole distillation, with the runs that it is compared with."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn
from transformers import set_seed

from odevit.core.configuration_odevit import OdeViTConfig
from odevit.distill.alignment import Alignment, layer_distances
from odevit.distill.base import StudentTask
from odevit.distill.bound_stopping import BoundStopping
from odevit.distill.distillation import DistillRecipe, is_equation
from odevit.distill.loss import LayerDistillation
from odevit.distill.objective import DistillObjective
from odevit.distill.phase import make_schedule
from odevit.distill.step_distillation import StepDistillationTask
from odevit.distill.teacher import Teacher
from odevit.errors import ConfigError, shortened, with_key_prefix
from odevit.surgery.block_locator import head_parameters, linear_heads
from odevit.surgery.modeling_student import OdeStudent
from odevit.surgery.surgery import get_ode_model
from odevit.tokens import Tokens
from odevit.train.classifier import train_recipe
from odevit.train.evaluate import Score
from odevit.train.folder import RECORD
from odevit.train.recipe import Recipe
from odevit.train.runner import run
from odevit.train.schedule import SchedulePhase
from odevit.train.splits import evaluation_batches, label_names, read_data
from odevit.train.trainer import FrozenUntil


def distill_recipe(
    recipe: DistillRecipe, command: str = "", then: Callable[[DistillTask], object] | None = None
) -> Path:
    """Distil a teacher into a student and return the student's folder.

    A teacher that is an ODE-ViT becomes a student with fewer steps, see `StepDistillation`. `then` is called in the
    main process with the finished task, which holds the student with its best weights, the teacher, the data and the
    alignment.
    """
    if is_equation(recipe.teacher):
        return run(StepDistillationTask(recipe), command)
    task = DistillTask(recipe)
    folder = run(task, command)
    if recipe.compare is not False:
        if not recipe.teacher:
            train_reference(task, "scratch")
        if task.process.is_main:
            rows = comparison(folder)
            task.folder.register("comparison.json").write_text(json.dumps(rows, indent=2) + "\n")
    if then is not None and task.process.is_main:
        then(task)
    return folder


class DistillTask(StudentTask):
    """A student that follows its teacher's hidden states, without labels unless the objective has them."""

    card: ClassVar[str] = "distill/student.md.j2"

    network: LayerDistillation
    teacher: Teacher
    alignment: Alignment

    def build(self) -> None:
        recipe, device = self.recipe, self.process.device
        source = recipe.teacher or str(train_reference(self, "teacher"))
        set_seed(recipe.seed)
        # In single precision: its states are what the student is compared with.
        self.teacher = teacher = Teacher(source).float()
        data = teacher.normalize(read_data(recipe, teacher.input_format, recipe.unlabelled))
        self.data = data = teacher.match_classes(data)
        recipe = self.recipe = self._with_fitting_batches(len(data.train))
        with with_key_prefix("student", vars(recipe.student)):
            student = get_ode_model(teacher.model, recipe.student_config(), vit_spec=teacher.vit_spec)
        student.config.update(label_names(data))
        if teacher.pixel_statistics is None:  # the student then needs those of the data
            student.config.update({"image_mean": list(data.mean), "image_std": list(data.std)})
        for module in (teacher, student):
            nn.Module.to(module, device)
        self.alignment = self._measure_alignment(student.solver_config.steps)
        self.network = LayerDistillation(student, teacher, self.alignment, recipe.objective)
        if recipe.train.checkpointing:
            student.gradient_checkpointing_enable()
        # The best student is the one that agrees most with the teacher on held-out images.
        self._make_batches(self.with_teacher_labels("validation"))
        self.sampler = self._make_sampler(student.solver_config, hold=True)
        self.phases = make_schedule(recipe.phases, recipe.objective, recipe.train, student.solver_config, recipe.seed)
        self.objectives = recipe.objectives
        self.few_shapes = student.depth.has_trajectory  # other systems may drop tokens or images inside
        self.has_idle_weights = self.trains_head  # its head has no gradient before labels count
        check_pooled(student, self.objectives)
        # The optimiser takes the weights that require a gradient now; the head is frozen until labels count.
        self.head = FrozenUntil(head_parameters(student.model) if self.trains_head else ())
        self.callbacks = [self.head]
        for parameter in self.head.weights:
            parameter.requires_grad_(True)
        if recipe.stopping.bound:
            images = next(iter(self.validation))["pixel_values"][:64]
            self.callbacks.append(BoundStopping(self.network, images, recipe.stopping, self.folder))
        if recipe.train.compile is True:
            teacher.compile_blocks()
            self.network.compile_layer_error()
        if self.process.is_main:
            self.alignment.save(self.folder.register("alignment.json"))
            student.print_summary()

    @torch.compiler.set_stance("force_eager")
    def dry_run(self) -> None:
        """Compute one loss of each phase with two images, without learning, so that errors come before training."""
        super().dry_run()
        two = {name: value[:2] for name, value in next(iter(self.batches)).items()}
        own, layers = self.student.solver_config, len(self.alignment.distances)
        phases: Sequence[SchedulePhase | None] = self.phases or [None]
        for phase in phases:
            self.before_step(phase.end if phase else 1.0, phase)
            key = f"phases.{phase.name}.objective" if phase else "objective"
            sampler = phase.sampler if phase else self.sampler
            configs = sampler.configs if sampler else [own]
            with with_key_prefix(key, vars(self.recipe.objective)):
                for solver_config in configs:
                    self.network.matched_layers(solver_config)
                self.network(**two, solver_config=configs[0])
            objective = self.network.objective
            if not (objective.path == "all" and objective.match == "exact" and self.process.is_main):
                continue
            if len(self.network.matched_layers(own)) == 1 < layers:
                all_match = len(self.network.matched_layers(own.replace(steps=layers))) == layers
                remedy = f"student.steps={layers} meets them all" if all_match else "pass objective.match=nearest"
                print(
                    f"{key}.match=exact: {own.steps} steps end at none of the teacher's {layers} layers but the "
                    f"last; {remedy}"
                )

    def _with_fitting_batches(self, images: int) -> DistillRecipe:
        """The recipe with batches not larger than the data; with phases, the number of steps does not depend on it."""
        recipe, t = self.recipe, self.recipe.train
        if not recipe.phases or t.batch_size <= images:
            return recipe
        size = max(1, images // t.accumulate // self.process.world) * t.accumulate * self.process.world
        if self.process.is_main:
            print(f"train.batch_size={size} instead of {t.batch_size}: there are {images} images to train on")
        return replace(recipe, train=replace(t, batch_size=size))

    def before_step(self, progress: float, part: SchedulePhase | None) -> None:
        network = self.network
        network.progress = progress
        if part is not None and part.name in self.objectives:
            network.objective = self.objectives[part.name]
            network.teacher_forcing = self.recipe.phases[part.name].teacher_forcing
        self.head.frozen = not (network.uses_labels and network.objective.unfreeze_head)

    @property
    def trains_head(self) -> bool:
        """Whether labels train the head too, in some phase."""
        return any(objective.unfreeze_head for objective in self.objectives.values())

    @torch.no_grad()
    def _measure_alignment(self, steps: int) -> Alignment:
        """The alignment for the distances that the layers of the teacher move its tokens."""
        recipe, settings, teacher = self.recipe, self.recipe.alignment, self.teacher
        # Some fused attentions turn NaN into numbers, so weights are checked as well as states.
        if broken := [name for name, weight in teacher.named_parameters() if not weight.isfinite().all()]:
            raise ValueError(
                f"the teacher's weights are not all finite: {shortened(broken)}; save or download it again"
            )
        batches = evaluation_batches(self.data, "train", 128, limit=settings.images, device=self.process.device)
        tokens = teacher.layout().cls if settings.tokens == "cls" else slice(None)
        states = (check_finite(teacher.states(batch["pixel_values"])) for batch in batches)
        alignment = Alignment(settings.kind, layer_distances(states, tokens), settings.temperature)
        exact = recipe.objective.path == "last" or recipe.objective.match == "exact" or recipe.phases
        checked = [] if exact else [*(recipe.train.steps or [steps])]
        for number in [*checked, steps] if recipe.stopping.bound else checked:
            alignment.indices(number)  # an error for fewer steps than layers
        return alignment

    def metrics(self, score: Score) -> dict[str, Any]:
        self.teacher.compile_blocks(False)
        return super().metrics(score)

    def record_fields(self) -> dict[str, Any]:
        if not self.phases:
            return super().record_fields()
        phases = {
            phase.name: {
                "share": phase.share,
                "teacher_forcing": self.recipe.phases[phase.name].teacher_forcing,
                "solver_configs": self.recipe.phases[phase.name].solver_configs,
                "learning_rate": phase.learning_rate,
                "muon_learning_rate": phase.muon_learning_rate,
                "final_rate": phase.final_rate,
                # Those of the last phase have selected the weights.
                "eval_configs": [config and config.to_dict() for config in phase.eval_configs],
            }
            for phase in self.phases
        }
        return {**super().record_fields(), "phases": phases}

    def summary(self, score: Score) -> str:
        return (
            f"test top-1 {score.top1:.2%} (teacher {self.teacher_score.top1:.2%})  agreement {self.agreement:.2%}  "
            f"of {score.images:,} images  nfe {score.nfe}  {score.milliseconds:.3f} ms/image"
        )


def check_finite(states: tuple[Tokens, ...]) -> tuple[Tokens, ...]:
    """The states of a teacher; an error names the first layer with NaN or infinity."""
    for layer, state in enumerate(states):
        if not torch.isfinite(state).all():
            where = f"its block {layer}" if layer else "its embedding"
            raise ValueError(
                f"the teacher's states are not all finite: NaN or infinity comes out of {where} for training images; "
                "check the pixel statistics in its preprocessor_config.json"
            )
    return states


def check_pooled(student: OdeStudent, objectives: Mapping[str, DistillObjective]) -> None:
    """Refuse `objective.pooled`, in any phase, for a model without a linear head whose input could be matched."""
    vit_spec = student.vit_spec
    if linear_heads(student.model, vit_spec.locator, vit_spec.labels):
        return
    why = f"{type(student.model).__name__} has no linear head with {vit_spec.labels} outputs beside its blocks"
    keys = {f"phases.{name}.objective" if name else "objective": value.pooled for name, value in objectives.items()}
    problems = [
        f"{key}.pooled={weight:g}: {why}; set it to 0, and {key}.cls=1" for key, weight in keys.items() if weight
    ]
    if problems:
        raise ConfigError("the recipe", problems)


def comparison(folder: Path) -> list[dict[str, Any]]:
    """Teacher, student from scratch and distilled student side by side, from the records of a run."""
    student = json.loads((folder / RECORD).read_text())
    trained = {
        part: json.loads((folder / part / RECORD).read_text())
        for part in ("teacher", "scratch")
        if (folder / part / RECORD).exists()
    }
    labels = trained.get("teacher", {}).get("labels")
    rows = [{"model": "teacher", "agreement": 1.0, "labels": labels, **student["teacher"]}]
    if "scratch" in trained:
        rows.append({"model": "student from scratch", **trained["scratch"]})
    rows.append({"model": "student distilled", **student})
    keys = ("model", "params", "labels", "nfe", "milliseconds", "top1", "agreement")
    return [{**{key: row.get(key) for key in keys}, "images": student.get("images")} for row in rows]


def train_reference(task: DistillTask, part: str) -> Path:
    """The folder of the teacher or of the student from scratch; one that an interrupted run finished is reused."""
    if task.process.is_main:
        task.folder.register(part)
    inner = reference_recipe(task.recipe, part)
    if inner.data.share < 1:
        # As many steps as the student makes, evaluated as often, on fewer images.
        every = max(1, round(inner.train.evaluate_every / inner.data.share))
        inner.train = replace(inner.train, updates=task.updates, evaluate_every=every)
    return inner.folder if (inner.folder / RECORD).exists() else train_recipe(inner)


def reference_recipe(recipe: DistillRecipe, part: str) -> Recipe:
    """The recipe of the `teacher`, or of the student's architecture from `scratch` for as many steps as the student."""
    model, data, train = replace(recipe.model), recipe.data, recipe.teacher_train
    if part == "scratch":
        data = replace(data, share=recipe.labels * data.share)
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
        data=data,
        train=train,
    )
