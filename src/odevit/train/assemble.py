"""recipe, network, batches -> Trainer: everything that belongs to a run, put together; and the run itself."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import EarlyStoppingCallback, PrinterCallback, TrainerCallback, TrainingArguments, set_seed
from transformers.integrations import TensorBoardCallback
from transformers.trainer_callback import ProgressCallback

from odevit.data import Batches
from odevit.field import Branch
from odevit.train.callbacks import DivergenceGuard, MetricsFile, ProgressLines
from odevit.train.checkpoints import last_complete
from odevit.train.folder import claim, write_recipe
from odevit.train.integration import IntegrationSampler, OneWay
from odevit.train.recipe import Recipe, TrainRecipe
from odevit.train.splits import choose_device
from odevit.train.trainer import OdeViTTrainer


@dataclass(frozen=True)
class Place:
    """This process among the processes of a run, as torchrun says it."""

    device: torch.device
    rank: int
    world: int

    @classmethod
    def here(cls, device: torch.device) -> Place:
        """Read the environment; one process unless it says otherwise."""
        if device.type == "cuda":
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        return cls(device, int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))

    def share(self, recipe: TrainRecipe) -> int:
        """Samples of one forward pass of this process."""
        parts = recipe.accumulate * self.world
        if recipe.batch_size % parts:
            raise ValueError(
                f"train.batch_size={recipe.batch_size} cannot be cut into {parts} equal parts "
                f"({recipe.accumulate} accumulated x {self.world} processes); change one of them"
            )
        return recipe.batch_size // parts

    def options(self, recipe: TrainRecipe) -> dict[str, Any]:
        """What `make_batches` wants to know of it."""
        return {"device": self.device, "rank": self.rank, "world": self.world, "workers": recipe.workers}


def begin(recipe: Recipe) -> Place:
    """Check the recipe, claim its folder, save and print it: how every run starts."""
    recipe.check()
    place = Place.here(choose_device(recipe.device))
    if place.rank == 0:
        claim(recipe.folder, recipe)
        print(write_recipe(recipe.folder, recipe), flush=True)
    return place


def make_sampler(recipe: Recipe, steps: int, horizon: float, batches: int) -> IntegrationSampler:
    """What a recipe draws for a model with these steps and this horizon, in epochs of so many batches."""
    t = recipe.train
    return IntegrationSampler(
        t.steps or [steps],
        [horizon * each for each in t.horizons or [1.0]],
        recipe.seed,
        t.longest_step,
        t.solvers,
        t.own,
        round(t.coarse_first * _all_updates(batches, t)),
    )


def assemble(
    recipe: Recipe,
    network: nn.Module,
    batches: Batches,
    validation: Batches,
    sampler: IntegrationSampler | OneWay,
    place: Place,
) -> OdeViTTrainer:
    """The Trainer with everything that belongs to it.

    Args:
        recipe: of the run.
        network: what is trained: takes a batch and gives a loss, saves itself with `save_pretrained`.
        batches, validation: to train on and to select on.
        sampler: draws how each batch is integrated.
        place: this process.
    """
    t, folder = recipe.train, recipe.folder
    updates = _all_updates(len(batches), t)
    between = min(updates, t.evaluate_every * _updates(len(batches), t))
    args = TrainingArguments(
        output_dir=str(folder / "checkpoints"),
        num_train_epochs=t.epochs,
        max_steps=t.updates or -1,
        per_device_train_batch_size=batches.batch_size,
        gradient_accumulation_steps=t.accumulate,
        learning_rate=t.learning_rate,
        lr_scheduler_type=t.schedule,
        lr_scheduler_kwargs={"num_cycles": t.cycles} if t.schedule == "cosine_with_restarts" else {},
        warmup_steps=round(t.warmup * updates),
        max_grad_norm=t.clip,
        bf16=t.precision == "bf16",
        use_cpu=place.device.type == "cpu",
        seed=recipe.seed,
        logging_steps=t.log_every,
        # A loss that is not a number must be seen, not smoothed over; and looking for it waits for the device.
        logging_nan_inf_filter=False,
        eval_strategy="steps",
        eval_steps=between,
        save_strategy="steps",
        save_steps=between,
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
    trainer = OdeViTTrainer(
        network, args, recipe=t, batches=batches, validation=validation, sampler=sampler, best=folder / "best"
    )
    if t.compile:
        compile_field(network)
    trainer.remove_callback(PrinterCallback)
    if args.disable_tqdm:
        trainer.remove_callback(ProgressCallback)
    trainer.add_callback(_AfterStep(trainer))
    trainer.add_callback(DivergenceGuard(folder / "checkpoints"))
    trainer.add_callback(MetricsFile(folder / "metrics.jsonl"))
    trainer.add_callback(ProgressLines(t.epochs))
    if "tensorboard" in recipe.loggers and place.rank == 0:
        from torch.utils.tensorboard import SummaryWriter

        # Left to itself the callback writes among the checkpoints, which are removed at the end.
        trainer.add_callback(TensorBoardCallback(SummaryWriter(str(folder / "tensorboard"))))
    if t.patience:
        trainer.add_callback(EarlyStoppingCallback(early_stopping_patience=t.patience))
    return trainer


def carry_out(recipe: Recipe, trainer: OdeViTTrainer, place: Place) -> float:
    """Train, or go on training, to the end; gives the best figure on the held-out split."""
    folder = recipe.folder
    checkpoint = last_complete(folder / "checkpoints") if recipe.resume else None
    if recipe.resume and place.rank == 0:
        trainer.recover_best()
        print(f"resuming from {checkpoint}" if checkpoint else "no complete checkpoint yet: starting at the beginning")
    trainer.capture_all()
    # Compilation and capture draw random numbers or not, depending on the machine; the run itself must not.
    set_seed(recipe.seed)
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    trainer.accelerator.wait_for_everyone()
    return trainer.state.best_metric or 0.0


def compile_field(model: nn.Module, backend: str = "inductor") -> None:
    """Compile the components of the field: small graphs that are used again at every step, not one unrolled loop."""
    for module in model.modules():
        if isinstance(module, Branch):
            # Not dynamic=False: the time would be a constant, and a field that knows it compiled anew at every step.
            module.compile(backend=backend)


def _updates(batches: int, recipe: TrainRecipe) -> int:
    """Optimiser steps of an epoch."""
    return -(-batches // recipe.accumulate)


def _all_updates(batches: int, recipe: TrainRecipe) -> int:
    """Optimiser steps of a run."""
    return recipe.updates or recipe.epochs * _updates(batches, recipe)


class _AfterStep(TrainerCallback):
    def __init__(self, trainer: OdeViTTrainer) -> None:
        self.trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.after_step()
