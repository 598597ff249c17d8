"""teacher, data -> student: a whole distillation, from the original to the comparison."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback, set_seed

from odevit.data import DataSet, Images
from odevit.distill.alignment import Alignment, layer_distances
from odevit.distill.answering import AnsweringTeacher
from odevit.distill.cache import cache_features
from odevit.distill.card import write_card
from odevit.distill.recipe import DistillRecipe
from odevit.distill.step import Distillation
from odevit.distill.stopping import BoundStopping
from odevit.distill.student import OdeStudent
from odevit.distill.surgery import get_ode_model
from odevit.distill.teacher import Teacher
from odevit.model import OdeViTConfig
from odevit.train.assemble import Place, assemble, begin, carry_out, make_sampler
from odevit.train.curves import draw_curves
from odevit.train.evaluate import evaluate_batches
from odevit.train.recipe import Recipe
from odevit.train.record import make_record
from odevit.train.run import print_summary, train_recipe
from odevit.train.splits import evaluation_batches, read_data, training_batches
from odevit.train.trainer import OdeViTTrainer

HEADS = {"classifier", "head", "cls_classifier", "distillation_classifier"}
"""What the heads of the models we know are called."""


def distill_recipe(recipe: DistillRecipe, command: str = "") -> Path:
    """Distil a teacher into a student as the recipe says and give back the student's folder."""
    place, folder = begin(recipe), recipe.folder
    main, device = place.rank == 0, place.device
    source = recipe.teacher or str(trained_part(recipe, "teacher"))
    set_seed(recipe.seed)
    teacher = Teacher(source)
    data = data_for(recipe, teacher)
    teacher.check_labels(data.num_classes)
    student = get_ode_model(teacher.model, recipe.student_config())
    teacher.to(place.device)
    student.to(place.device)
    alignment = measure(recipe, teacher, data, place)
    features = None
    if recipe.features:
        features = cache_features(teacher, evaluation_batches(data, "train", device=place.device), recipe.features)
    network = Distillation(student, teacher, alignment, recipe.objective, features)
    if main:
        alignment.save(folder / "alignment.json")
        student.print_summary()
        print_summary(student, data, device)
    trainer = make_trainer(recipe, network, data, place)
    validation = carry_out(recipe, trainer, place)
    if main:
        finish(recipe, network, validation, data, device, command)
    trainer.accelerator.wait_for_everyone()
    if recipe.compare:
        trained_part(recipe, "scratch")
        if main:
            (folder / "comparison.json").write_text(json.dumps(comparison(folder), indent=2) + "\n")
    if main:
        from odevit.distill.report import write_report  # matplotlib is slow to import, and only needed here

        print(f"report: {write_report(recipe, teacher, data, comparison(folder), device)}")
    return folder


def comparison(folder: Path) -> list[dict[str, Any]]:
    """Teacher, student from scratch and distilled student side by side, from the records of a run."""
    student = json.loads((folder / "record.json").read_text())
    rows = [{"model": "teacher", "agreement": 1.0, **student["teacher"]}]
    if (folder / "scratch/record.json").exists():
        rows.append({"model": "student from scratch", **json.loads((folder / "scratch/record.json").read_text())})
    rows.append({"model": "student distilled", **student})
    keys = ("model", "params", "nfe", "milliseconds", "top1", "agreement")
    return [{key: row.get(key) for key in keys} for row in rows]


def trained_part(recipe: DistillRecipe, part: str) -> Path:
    """The folder of the teacher or of the student from scratch; one that an interrupted run finished is kept."""
    inner = part_recipe(recipe, part)
    return inner.folder if (inner.folder / "record.json").exists() else train_recipe(inner)


def part_recipe(recipe: DistillRecipe, part: str) -> Recipe:
    """The recipe of the `teacher`, or of the student's architecture from `scratch` for as many steps as the student."""
    model, train = replace(recipe.model), recipe.teacher_train
    if part == "scratch":
        student, train = recipe.student, recipe.train
        teacher = OdeViTConfig(**recipe.model_settings())
        model.depth, model.solver, model.steps = "ode", student.solver, student.steps  # type: ignore[attr-defined]
        model.horizon = student.horizon or float(teacher.steps)  # type: ignore[attr-defined]
        model.leak, model.norm = student.leak, student.norm  # type: ignore[attr-defined]
        model.mlp_ratio, model.bias = student.mlp_ratio, student.bias  # type: ignore[attr-defined]
        model.num_register_tokens = teacher.num_register_tokens + student.registers  # type: ignore[attr-defined]
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


def data_for(recipe: Recipe, teacher: Teacher) -> DataSet:
    """The data at the teacher's image size, with the teacher's pixel statistics: it sees what it was trained on."""
    height, width = teacher.anatomy.size
    if height != width:
        raise ValueError(f"the teacher takes {height}x{width} images; expected square ones")
    data = read_data(recipe, height)
    statistics = teacher.pixel_statistics
    if statistics is None:
        return data
    return replace(data, mean=statistics.mean, std=statistics.std)


@torch.no_grad()
def measure(recipe: DistillRecipe, teacher: Teacher, data: DataSet, place: Place) -> Alignment:
    """Measure how far each layer of the teacher moves its tokens, and align the student with it."""
    how = recipe.alignment
    batches = evaluation_batches(data, "train", 128, limit=how.images, device=place.device)
    tokens = teacher.layout().cls if how.tokens == "cls" else slice(None)
    distances = layer_distances((teacher.states(batch["pixel_values"]) for batch in batches), tokens)
    alignment = Alignment(how.kind, distances, how.temperature)
    own = recipe.student_config().steps
    matched = [] if recipe.objective.path == "last" else recipe.train.steps or [own]
    for steps in [*matched, own] if recipe.stopping.bound else matched:
        alignment.indices(steps)  # too few steps for the teacher's layers are better said now than at the first batch
    return alignment


def make_trainer(recipe: DistillRecipe, network: Distillation, data: DataSet, place: Place) -> OdeViTTrainer:
    """The Trainer of a distillation; the held-out images carry the teacher's answers for labels."""
    t, depth = recipe.train, network.student.encoder.depth
    options = place.options(t)
    batches = training_batches(
        data,
        place.share(t),
        recipe.data.augmentation,
        seed=recipe.seed,
        indices=network.features is not None,
        **options,
    )
    answers = replace(data, validation=told(network.teacher, data, "validation", place.device))
    validation = evaluation_batches(answers, "validation", **options)
    sampler = make_sampler(recipe, depth.steps, depth.horizon, len(batches))
    progress = _Progress(network)  # frees the head, if asked to, before the optimiser looks for what is trained
    trainer = assemble(recipe, network, batches, validation, sampler, place)
    trainer.add_callback(progress)
    if recipe.stopping.bound:
        images = next(iter(validation))["pixel_values"][:64]
        trainer.add_callback(BoundStopping(network, images, recipe.stopping, recipe.folder))
    return trainer


@torch.no_grad()
def told(teacher: Teacher, data: DataSet, split: str, device: torch.device) -> Images:
    """The images of a split with what the teacher says for labels, so that accuracy on them is agreement with it."""
    images = {"validation": data.validation, "test": data.test}[split]
    if not isinstance(images, Images):
        raise ValueError("agreement with a teacher is measured on images in memory; raise data.resident_limit_gb")
    answers = [
        teacher.logits(batch["pixel_values"]).argmax(-1).cpu()
        for batch in evaluation_batches(data, split, 128, device=device)
    ]
    return Images(images.pixels, torch.cat(answers))


class _Progress(TrainerCallback):
    """Tells the network how much of the training is over, and holds the head still until its time has come."""

    def __init__(self, network: Distillation) -> None:
        self.network = network
        self.head = head_parameters(network.student) if network.objective.unfreeze_head else []
        for parameter in self.head:
            parameter.requires_grad_(True)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.network.progress = state.global_step / max(1, state.max_steps)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.network.progress < self.network.objective.cross_entropy_from:
            for parameter in self.head:
                parameter.grad = None


def head_parameters(student: OdeStudent) -> list[nn.Parameter]:
    """The weights of the original's classification head."""
    found = [p for name, p in student.model.named_parameters() if HEADS & set(name.split("."))]
    if not found:
        raise ValueError(
            f"objective.unfreeze_head=true, but {type(student.model).__name__} has no part called "
            f"{' or '.join(sorted(HEADS))}; leave it frozen"
        )
    return found


def finish(
    recipe: DistillRecipe, network: Distillation, validation: float, data: DataSet, device: torch.device, command: str
) -> None:
    """Take the best student, read the test split once, and write everything down."""
    folder, teacher = recipe.folder, network.teacher
    student = OdeStudent.from_pretrained(folder / "best").to(device)
    network = Distillation(student, teacher, network.alignment, recipe.objective).eval()
    test = evaluation_batches(data, "test", device=device)
    score = evaluate_batches(network, test)
    answers = replace(data, test=told(teacher, data, "test", device))
    agreement = evaluate_batches(network, evaluation_batches(answers, "test", device=device)).top1
    original = evaluate_batches(AnsweringTeacher(teacher), test)
    student.save_pretrained(folder)
    record = make_record(
        recipe,
        score,
        params=count(student),
        validation=validation,
        device=device,
        command=command,
        agreement=agreement,
        teacher_top1=original.top1,
    )
    record["teacher"] = {
        "source": recipe.teacher or "trained by the same command",
        "params": count(teacher),
        "nfe": original.nfe,
        "milliseconds": original.milliseconds,
        "top1": original.top1,
    }
    (folder / "record.json").write_text(json.dumps(record, indent=2) + "\n")
    draw_curves(folder / "metrics.jsonl", folder / "curves.png", recipe.name, "agreement with the teacher (%)")
    write_card(folder, student, record, supervised=recipe.objective.cross_entropy > 0)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    shutil.rmtree(folder / "best", ignore_errors=True)
    print(
        f"test top-1 {score.top1:.2%} (teacher {original.top1:.2%})  agreement {agreement:.2%}  nfe {score.nfe}  "
        f"{score.milliseconds:.3f} ms/image  ->  {folder}"
    )


def count(model: nn.Module) -> int:
    """How many parameters a model has."""
    return sum(parameter.numel() for parameter in model.parameters())
