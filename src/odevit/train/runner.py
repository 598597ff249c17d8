"""recipe -> build -> train -> best -> test -> record, curves, card -> clean up: the steps of every run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model
from torch import nn
from transformers import PrinterCallback, TrainerCallback, TrainingArguments, set_seed
from transformers.integrations import TensorBoardCallback
from transformers.trainer_callback import ProgressCallback

from odevit.core.field import Branch
from odevit.train.cuda_graphs import can_be_replayed
from odevit.train.evaluate import evaluate_batches
from odevit.train.folder import ASIDE, CHECKPOINTS, RECIPE, RECORD, last_complete
from odevit.train.recipe import TrainRecipe
from odevit.train.record import device_name, draw_curves, make_record, write_card
from odevit.train.schedule import UNLIMITED, TimeLimit
from odevit.train.splits import EVALUATION_BATCH, WORKERS, evaluation_batches
from odevit.train.task import Task
from odevit.train.trainer import DivergenceGuard, OdeViTTrainer, RunLog

COMPILED_KINDS = 32
"""How often one component of a field may be compiled, at most; torch's own limit is 8."""


def run(task: Task[Any], command: str = "") -> Path:
    """Train what the task builds and return its folder; the record keeps the `command`.

    The folder ends with weights, configuration, image processor, recipe, metrics, curves, record and model card. The
    finished task still holds the network, with its best weights, and the data.
    """
    recipe = task.recipe
    recipe.check()
    if recipe.train.seconds and task.process.world > 1:
        raise ValueError("train.seconds works in one process only; use train.epochs with several")
    if task.process.is_main:
        task.folder.acquire(recipe)
        print(f"recipe: {task.folder.path / RECIPE}", flush=True)
    task.recipe = recipe.on(task.process.device.type)
    if task.process.is_main and task.recipe != recipe:
        print(_auto_values(recipe.train, task.recipe.train), flush=True)
    trainer = None
    try:
        task.build()
        task.dry_run()
        if task.process.is_main:
            print(_sizes(task), flush=True)
        trainer = make_trainer(task)
        if task.process.is_main and task.recipe.train.capture and not trainer.captures:
            print("train.capture: CUDA graphs disabled: the model's control flow depends on the data", flush=True)
        validation = _fit(task, trainer)
    except BaseException:
        # A run that failed before its first step must not block the next try.
        if task.process.is_main and not recipe.resume and (trainer is None or trainer.state.global_step == 0):
            task.folder.discard()
            if (waiting := task.folder.path / ASIDE).exists():
                print(f"the run that this one replaces is kept in {waiting} until this one is trained")
        raise
    if task.process.is_main:
        task.folder.remove_replaced()
        _finish(task, trainer, validation, command)
    trainer.accelerator.wait_for_everyone()
    return recipe.folder


def make_trainer(task: Task[Any]) -> OdeViTTrainer:
    """The Trainer of a built task, with its arguments and callbacks."""
    recipe, folder, t = task.recipe, task.folder, task.recipe.train
    if task.process.is_main:
        for name in (CHECKPOINTS, "metrics.jsonl"):
            folder.register(name)
    checkpoints = folder.path / CHECKPOINTS
    args = TrainingArguments(
        output_dir=str(checkpoints),
        num_train_epochs=t.epochs,
        max_steps=UNLIMITED if t.seconds else t.updates or -1,
        per_device_train_batch_size=task.batches.batch_size,
        gradient_accumulation_steps=t.accumulate,
        learning_rate=t.learning_rate,
        lr_scheduler_type=t.schedule,
        lr_scheduler_kwargs={"num_cycles": t.cycles} if t.schedule == "cosine_with_restarts" else {},
        warmup_steps=round(t.warmup * task.updates),
        max_grad_norm=t.clip,
        use_cpu=task.process.device.type == "cpu",
        seed=recipe.seed,
        logging_steps=t.log_every,
        # The filter would hide a loss that is not a number, and it waits for the device.
        logging_nan_inf_filter=False,
        eval_strategy="steps",
        eval_steps=task.updates_between_evaluations,
        save_strategy="steps",
        save_steps=task.updates_between_evaluations,
        save_total_limit=2,
        metric_for_best_model="accuracy",
        greater_is_better=True,
        report_to=[name for name in recipe.loggers if name != "tensorboard"] or "none",
        project="odevit",
        run_name=folder.path.name,
        disable_tqdm=not sys.stderr.isatty(),
        ddp_find_unused_parameters=task.has_idle_weights,
    )
    trainer = OdeViTTrainer(task, args)
    if t.compile:
        compile_field(task.network, few_shapes=task.few_shapes)
    trainer.remove_callback(PrinterCallback)
    if args.disable_tqdm:
        trainer.remove_callback(ProgressCallback)
    callbacks: list[TrainerCallback] = [
        DivergenceGuard(checkpoints),
        RunLog(
            folder.path / "metrics.jsonl",
            "" if t.seconds or t.updates else f"/{t.epochs}",
            task.score_label.removesuffix(" (%)"),
        ),
        *task.callbacks,
    ]
    if "tensorboard" in recipe.loggers and task.process.is_main:
        from torch.utils.tensorboard import SummaryWriter

        # By default the callback writes among the checkpoints, which are removed at the end.
        callbacks.append(TensorBoardCallback(SummaryWriter(str(folder.register("tensorboard")))))
    if task.schedule:
        callbacks.append(TimeLimit())
    for callback in callbacks:
        trainer.add_callback(callback)
    return trainer


def _fit(task: Task[Any], trainer: OdeViTTrainer) -> float:
    """Train, or resume, to the end; returns the best score on the held-out split."""
    recipe = task.recipe
    checkpoint = last_complete(task.folder.path / CHECKPOINTS) if recipe.resume else None
    if recipe.resume and task.process.is_main:
        print(f"resuming from {checkpoint}" if checkpoint else "no complete checkpoint yet: starting at the beginning")
    # With and without gradients, on knots and between them: torch expects fewer kinds.
    # A backward pass with donated buffers runs once; a fixed-point search for gradients runs it many times.
    with (
        torch._dynamo.config.patch(recompile_limit=COMPILED_KINDS),
        torch._functorch.config.patch(donated_buffer=can_be_replayed(task.network)),
    ):
        trainer.capture_all()
        # Compilation and capture may draw random numbers, depending on the machine; the run must not depend on it.
        set_seed(recipe.seed)
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    trainer.accelerator.wait_for_everyone()
    return trainer.state.best_metric or 0.0


def _finish(task: Task[Any], trainer: OdeViTTrainer, validation: float, command: str) -> None:
    """Load the best weights, evaluate them on the test split once, and write record, curves and card."""
    recipe, folder, device = task.recipe, task.folder, task.process.device
    # Without captured graphs and compilation, which are for the shapes of the training.
    trainer.captured = None
    for module in task.network.modules():
        if isinstance(module, Branch):
            module.compiled = None
    load_model(task.network, str(trainer.best), device=str(device))
    task.network.eval()
    with torch.compiler.set_stance("force_eager"):
        test = evaluation_batches(task.data, "test", device=device, workers=WORKERS)
        score = evaluate_batches(task.model, test)
        figures = task.metrics(score)
    with folder.register_written():
        task.network.save_pretrained(folder.path)
    params = count_parameters(task.model)
    record = make_record(recipe, score, params=params, validation=validation, device=device, command=command, **figures)
    record |= task.record_fields()
    draw_curves(folder.path / "metrics.jsonl", folder.register("curves.png"), recipe.name, task.score_label)
    batch = min(EVALUATION_BATCH, score.images)
    write_card(folder.register("README.md"), task.card, task=task, record=record, score=score, batch=batch)
    # Written last: a run with a record is finished.
    folder.register(RECORD).write_text(json.dumps(record, indent=2) + "\n")
    folder.remove(CHECKPOINTS)
    print(f"{task.summary(score)}  ->  {folder.path}")
    if score.warning:
        print(score.warning)


def compile_field(model: nn.Module, backend: str = "inductor", few_shapes: bool = False) -> None:
    """Compile the components of the field: small graphs that every step reuses, not one unrolled loop.

    With `few_shapes` every shape gets its own kernels; otherwise a second shape gets kernels for any shape.
    """
    for module in model.modules():
        if isinstance(module, Branch):
            # A field that depends on t has another number at every step, for each of which it would be compiled.
            depends_on_time = module.time is not None or module.time_added is not None
            module.compile(backend=backend, dynamic=False if few_shapes and not depends_on_time else None)


def count_parameters(model: nn.Module) -> int:
    """The number of parameters, trained or not."""
    return sum(parameter.numel() for parameter in model.parameters())


def _auto_values(given: TrainRecipe, resolved: TrainRecipe) -> str:
    """The value of every option that was `auto`."""
    chosen = {key: value for key, value in vars(resolved).items() if getattr(given, key) != value}
    return "auto: " + " ".join(f"train.{key}={value}" for key, value in chosen.items())


def _sizes(task: Task[Any]) -> str:
    data = task.data
    return (
        f"{count_parameters(task.model):,} parameters; {len(data.train):,} images to train on, "
        f"{len(data.validation):,} held out, {len(data.test):,} to test on; {device_name(task.process.device)}"
    )
