"""recipe -> folder: a whole training run, from the data to the model card."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import nn
from transformers import EarlyStoppingCallback, PrinterCallback, TrainerCallback, TrainingArguments, set_seed
from transformers.integrations import TensorBoardCallback
from transformers.trainer_callback import ProgressCallback

from odevit.data import DataSet
from odevit.field import Branch
from odevit.model import OdeViTConfig, OdeViTForImageClassification
from odevit.train.callbacks import DivergenceGuard, MetricsFile, ProgressLines
from odevit.train.checkpoints import last_complete
from odevit.train.finish import finish
from odevit.train.folder import claim
from odevit.train.integration import IntegrationSampler
from odevit.train.recipe import Recipe
from odevit.train.record import device_name
from odevit.train.splits import choose_device, evaluation_batches, read_data, training_batches
from odevit.train.trainer import OdeViTTrainer


def train_recipe(recipe: Recipe, command: str = "") -> Path:
    """Train what the recipe describes and give back its folder.

    The folder ends with weights, config, image processor, recipe, metrics, curves, record and model card; see
    `Recipe` for what can be said.
    """
    recipe.check()
    folder = recipe.folder
    main = int(os.environ.get("RANK", "0")) == 0
    if main:
        claim(folder, recipe)
    device = choose_device(recipe.device)
    config = OdeViTConfig(**recipe.model_settings())
    data = read_data(recipe, config)
    set_seed(recipe.seed)
    model = make_model(recipe, config, data)
    if main:
        text = yaml.safe_dump(asdict(recipe), sort_keys=False)
        (folder / "recipe.yaml").write_text(text)
        print(text, flush=True)
        _print_summary(model, data, device)
    trainer = make_trainer(recipe, model, data, device)
    checkpoint = last_complete(folder / "checkpoints") if recipe.resume else None
    if recipe.resume and main:
        trainer.recover_best()
        print(f"resuming from {checkpoint}" if checkpoint else "no complete checkpoint yet: starting at the beginning")
    trainer.capture_all()
    # Compilation and capture draw random numbers or not, depending on the machine; the run itself must not.
    set_seed(recipe.seed)
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    trainer.accelerator.wait_for_everyone()
    if main:
        finish(recipe, trainer.state.best_metric or 0.0, data, device, command)
    trainer.accelerator.wait_for_everyone()
    return folder


def make_model(recipe: Recipe, config: OdeViTConfig, data: DataSet) -> OdeViTForImageClassification:
    """A new model with the data's classes and pixel statistics, or the one to start from."""
    names = dict(enumerate(data.classes))
    labels = {"id2label": names, "label2id": {name: number for number, name in names.items()}}
    pixels = {"image_mean": list(data.mean), "image_std": list(data.std), "num_channels": data.channels}
    settings = {**recipe.model_settings(), **pixels, **labels}
    settings.pop("num_labels", None)
    fresh = OdeViTConfig(**settings)
    if recipe.init_from is None:
        model = OdeViTForImageClassification(fresh)
    else:
        model = OdeViTForImageClassification.from_pretrained(recipe.init_from, dtype=torch.float32)
        if model.config.num_labels != len(names):
            raise ValueError(
                f"the data has {len(names)} classes, the head of {recipe.init_from} has {model.config.num_labels}; "
                "start from an encoder (save model.odevit to a folder of its own and pass that), which gets a new head"
            )
        model.config.update({**pixels, **labels})
    if recipe.train.checkpointing:
        model.gradient_checkpointing_enable()
    return model


def make_trainer(
    recipe: Recipe, model: OdeViTForImageClassification, data: DataSet, device: torch.device
) -> OdeViTTrainer:
    """The Trainer with everything that belongs to it."""
    t, folder = recipe.train, recipe.folder
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    parts = t.accumulate * world
    if t.batch_size % parts:
        raise ValueError(
            f"train.batch_size={t.batch_size} cannot be cut into {parts} equal parts "
            f"({t.accumulate} accumulated x {world} processes); change one of them"
        )
    share = t.batch_size // parts
    local = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if device.type == "cuda" else device
    here: dict[str, Any] = {"device": local, "rank": rank, "world": world, "workers": t.workers}
    batches = training_batches(data, share, recipe.data.augmentation, seed=recipe.seed, **here)
    validation = evaluation_batches(data, "validation", **here)
    updates = -(-len(batches) // t.accumulate)
    args = TrainingArguments(
        output_dir=str(folder / "checkpoints"),
        num_train_epochs=t.epochs,
        per_device_train_batch_size=share,
        gradient_accumulation_steps=t.accumulate,
        learning_rate=t.learning_rate,
        lr_scheduler_type=t.schedule,
        lr_scheduler_kwargs={"num_cycles": t.cycles} if t.schedule == "cosine_with_restarts" else {},
        warmup_steps=round(t.warmup * updates * t.epochs),
        max_grad_norm=t.clip,
        bf16=t.precision == "bf16",
        use_cpu=device.type == "cpu",
        seed=recipe.seed,
        logging_steps=t.log_every,
        # A loss that is not a number must be seen, not smoothed over; and looking for it waits for the device.
        logging_nan_inf_filter=False,
        eval_strategy="steps",
        eval_steps=updates * t.evaluate_every,
        save_strategy="steps",
        save_steps=updates * t.evaluate_every,
        save_total_limit=2,
        metric_for_best_model="accuracy",
        greater_is_better=True,
        report_to=[name for name in recipe.loggers if name != "tensorboard"] or "none",
        project="odevit",
        run_name=folder.name,
        # Early stopping counts evaluations without progress; a resumed run must not count anew.
        restore_callback_states_from_checkpoint=t.patience > 0,
        disable_tqdm=not sys.stderr.isatty(),
        ddp_find_unused_parameters=False,
    )
    config = model.config
    sampler = None
    if config.depth == "ode":
        horizons = [config.horizon * each for each in t.horizons or [1.0]]
        sampler = IntegrationSampler(t.steps or [config.steps], horizons, recipe.seed)
    trainer = OdeViTTrainer(
        model, args, recipe=t, batches=batches, validation=validation, sampler=sampler, best=folder / "best"
    )
    if t.compile:
        compile_field(model)
    trainer.remove_callback(PrinterCallback)
    if args.disable_tqdm:
        trainer.remove_callback(ProgressCallback)
    trainer.add_callback(_AfterStep(trainer))
    trainer.add_callback(DivergenceGuard(folder / "checkpoints"))
    trainer.add_callback(MetricsFile(folder / "metrics.jsonl"))
    trainer.add_callback(ProgressLines(t.epochs))
    if "tensorboard" in recipe.loggers and rank == 0:
        from torch.utils.tensorboard import SummaryWriter

        # Left to itself the callback writes among the checkpoints, which are removed at the end.
        trainer.add_callback(TensorBoardCallback(SummaryWriter(str(folder / "tensorboard"))))
    if t.patience:
        trainer.add_callback(EarlyStoppingCallback(early_stopping_patience=t.patience))
    return trainer


def compile_field(model: nn.Module) -> None:
    """Compile the components of the field: small graphs that are used again at every step, not one unrolled loop."""
    for module in model.modules():
        if isinstance(module, Branch):
            module.compile(dynamic=False)


class _AfterStep(TrainerCallback):
    def __init__(self, trainer: OdeViTTrainer) -> None:
        self.trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.after_step()


def _print_summary(model: OdeViTForImageClassification, data: DataSet, device: torch.device) -> None:
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(
        f"{parameters:,} parameters; {len(data.train):,} images to train on, {len(data.validation):,} held out, "
        f"{len(data.test):,} to test on; {device_name(device)}",
        flush=True,
    )
