"""recipe -> folder: a whole training run, from the data to the model card."""

from __future__ import annotations

import json
import os
import shutil
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

from odevit.data import Augmentation, Batches, DataSet, load_data, make_batches
from odevit.field import Branch
from odevit.model import OdeViTConfig, OdeViTForImageClassification
from odevit.train.callbacks import DivergenceGuard, MetricsFile, ProgressLines
from odevit.train.card import write_card
from odevit.train.checkpoints import last_complete
from odevit.train.curves import draw_curves
from odevit.train.evaluate import Score, evaluate_batches
from odevit.train.integration import IntegrationSampler
from odevit.train.recipe import Recipe
from odevit.train.record import device_name, versions
from odevit.train.trainer import OdeViTTrainer

EVALUATION_BATCH = 512


def train_recipe(recipe: Recipe, command: str = "") -> Path:
    """Train what the recipe describes and give back its folder.

    The folder ends with weights, config, image processor, recipe, metrics, curves, record and model card; see
    `Recipe` for what can be said.
    """
    recipe.check()
    folder = recipe.folder
    main = int(os.environ.get("RANK", "0")) == 0
    if main:
        _claim(folder, recipe)
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
        print(f"resuming from {checkpoint}" if checkpoint else "no complete checkpoint yet: starting at the beginning")
    if recipe.resume and main:
        trainer.recover_best()
    trainer.capture_all()
    # Compilation and capture draw random numbers or not, depending on the machine; the run itself must not.
    set_seed(recipe.seed)
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    trainer.accelerator.wait_for_everyone()
    if main:
        finish(recipe, trainer, data, device, command)
    trainer.accelerator.wait_for_everyone()
    return folder


def choose_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def read_data(recipe: Recipe, config: OdeViTConfig) -> DataSet:
    """The data set, at the size the model takes."""
    source = recipe.data
    return load_data(
        source.source,
        image_size=source.image_size or config.image_size,
        image_column=source.image_column,
        label_column=source.label_column,
        validation=source.validation,
        split_seed=source.split_seed,
        skip_unreadable=source.skip_unreadable,
        resident_limit_gb=source.resident_limit_gb,
        cache=source.cache,
    )


def training_batches(data: DataSet, size: int, augmentation: Augmentation, *, seed: int, **where: Any) -> Batches:
    """Shuffled, augmented batches, all of one size."""
    return make_batches(
        data.train,
        size,
        augmentation=augmentation,
        mean=data.mean,
        std=data.std,
        num_classes=data.num_classes,
        seed=seed,
        shuffle=True,
        drop_last=True,
        **where,
    )


def evaluation_batches(
    data: DataSet, split: str, size: int = EVALUATION_BATCH, limit: int | None = None, **where: Any
) -> Batches:
    """The images of a split as they are, every one of them once; the first `limit` only, if given."""
    images = {"train": data.train, "validation": data.validation, "test": data.test}[split]
    if limit is not None and limit < len(images):
        images = images.subset(torch.arange(limit))
    options = {"mean": data.mean, "std": data.std, "num_classes": data.num_classes, **where}
    return make_batches(images, size, **options)


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


def finish(recipe: Recipe, trainer: OdeViTTrainer, data: DataSet, device: torch.device, command: str) -> dict[str, Any]:
    """Take the best weights, read the test split once, and write everything down."""
    folder = recipe.folder
    model = OdeViTForImageClassification.from_pretrained(folder / "best", dtype=torch.float32).to(device)
    test = evaluation_batches(data, "test", device=device, workers=recipe.train.workers)
    score = evaluate_batches(model, test)
    model.save_pretrained(folder)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    record = {
        "name": recipe.name,
        "command": command,
        "data": recipe.data.source,
        "params": sum(parameter.numel() for parameter in model.parameters()),
        "nfe": score.nfe,
        "top1": score.top1,
        "top3": score.top3,
        "top5": score.top5,
        "milliseconds": score.milliseconds,
        "epochs": recipe.train.epochs,
        "seconds": lines[-1]["seconds"],
        "device": device_name(device),
        "versions": versions(),
        "seeds": [
            {
                "seed": recipe.seed,
                "top1": score.top1,
                "top3": score.top3,
                "top5": score.top5,
                "validation": trainer.state.best_metric,
                "seconds": lines[-1]["seconds"],
            }
        ],
    }
    (folder / "record.json").write_text(json.dumps(record, indent=2) + "\n")
    draw_curves(folder / "metrics.jsonl", folder / "curves.png", recipe.name)
    write_card(folder, {**_card_facts(model, score), **record, "classes": len(data.classes), "seed": recipe.seed,
                        "validation": trainer.state.best_metric, "version": versions()["odevit"]})  # fmt: skip
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    shutil.rmtree(folder / "best", ignore_errors=True)
    print(
        f"test top-1 {score.top1:.2%}  top-3 {score.top3:.2%}  top-5 {score.top5:.2%}  nfe {score.nfe}  "
        f"{score.milliseconds:.3f} ms/image  ->  {folder}"
    )
    return record


def _card_facts(model: OdeViTForImageClassification, score: Score) -> dict[str, Any]:
    config = model.config
    stacked = config.depth == "stacked"
    leak = f" - {config.leak:g} (x - x0)" if config.leak and not stacked else ""
    return {
        "equation": f"{config.steps} untied layers" if stacked else f"dx/dt = G(x) + F(x){leak}",
        "solver": config.solver,
        "steps": config.steps,
        "horizon": config.horizon,
        "image_size": config.image_size,
        "eval_batch": min(EVALUATION_BATCH, score.images),
    }


def _claim(folder: Path, recipe: Recipe) -> None:
    """Make the folder, or refuse one that holds a run."""
    holds_run = (folder / "recipe.yaml").exists() or (folder / "config.json").exists()
    if recipe.resume:
        if not holds_run:
            raise ValueError(f"resume=true, but {folder} holds no run; give its folder as out=, or drop resume")
        if (folder / "record.json").exists():
            raise ValueError(
                f"resume=true, but the run in {folder} is finished; evaluate it, or train with another out="
            )
        _refuse_changed_recipe(folder, recipe)
    elif holds_run and not recipe.overwrite:
        raise ValueError(
            f"{folder} already holds a run; pass resume=true to go on with it, overwrite=true to replace it, "
            "or another out="
        )
    elif recipe.overwrite:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)


def _refuse_changed_recipe(folder: Path, recipe: Recipe) -> None:
    """A resumed run is the same run."""
    free = {"out", "resume", "overwrite", "device", "loggers"}
    before = yaml.safe_load((folder / "recipe.yaml").read_text())
    now = yaml.safe_load(yaml.safe_dump(asdict(recipe)))
    changed = [
        f"{key}{'.' + inner if inner else ''}"
        for key in now
        if key not in free
        for inner in (now[key] if isinstance(now[key], dict) else [""])
        if (now[key][inner] if inner else now[key]) != (before[key].get(inner) if inner else before.get(key))
    ]
    if changed:
        raise ValueError(
            f"resume=true goes on with the recipe of {folder}, but {', '.join(changed)} changed; "
            "give the same settings as before, or start a new run with init_from="
        )


def _print_summary(model: OdeViTForImageClassification, data: DataSet, device: torch.device) -> None:
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(
        f"{parameters:,} parameters; {len(data.train):,} images to train on, {len(data.validation):,} held out, "
        f"{len(data.test):,} to test on; {device_name(device)}",
        flush=True,
    )
