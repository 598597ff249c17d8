"""Hugging Face's Trainer with batches made on the device, sampled solvers, averaged weights and CUDA graphs."""

from __future__ import annotations

import errno
import math
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_model
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from transformers import Trainer, TrainerCallback, TrainingArguments

from odevit.core.solver_config import SolverConfig
from odevit.errors import IntegrationError
from odevit.solvers.adaptive import AdaptiveSolver
from odevit.train.cuda_graphs import CapturedStep, can_be_replayed
from odevit.train.evaluate import evaluate_batches
from odevit.train.folder import COMPLETE, last_complete
from odevit.train.loss import TrainingLoss
from odevit.train.optimisers import WeightAverage, make_optimiser
from odevit.train.record import read_metrics, write_lines
from odevit.train.schedule import Schedule, SchedulePhase
from odevit.train.task import Task

AVERAGE, BEST = "average.safetensors", "best.safetensors"


class OdeViTTrainer(Trainer):
    """A Trainer with our batches and our training step.

    Args:
        task: the network, its batches and the solver of each batch; see `Task`.
        args: Hugging Face's arguments; the best weights are kept among the checkpoints.
    """

    def __init__(self, task: Task[Any], args: TrainingArguments) -> None:
        # The Trainer asks for data sets, but it only ever gets our batches.
        super().__init__(model=task.network, args=args, train_dataset=task.batches, eval_dataset=task.validation)
        self.task = task
        self.network = task.network
        self.recipe = recipe = task.recipe.train
        self.checkpoints = Path(str(args.output_dir))
        self.best = self.checkpoints / BEST
        self.loss = TrainingLoss.of(recipe)
        self.average = WeightAverage(task.network, recipe.ema) if recipe.ema > 0 else None
        if self.average is not None:
            self.add_callback(self.average)
        self.captured: CapturedStep | None = None
        self.captures = bool(recipe.capture) and can_be_replayed(task.network)
        self.autocast_dtype = torch.bfloat16 if recipe.precision == "bf16" else None

    # Our batches are made on the device; Accelerate has nothing to move or to shard.
    def get_train_dataloader(self) -> Any:
        return self.task.batches

    def num_examples(self, dataloader: Any) -> int:
        return len(dataloader) * dataloader.batch_size

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            self.optimizer = make_optimiser(self.network if model is None else model, self.recipe, self.task.rate_of)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> LRScheduler:
        rated = optimizer or self.optimizer
        if self.lr_scheduler is None and self.task.schedule and rated is not None:
            schedule: Any = Schedule(rated, self.task.schedule, num_training_steps, self.recipe.seconds)
            self.lr_scheduler, self._created_lr_scheduler = schedule, True
        return super().create_scheduler(num_training_steps, optimizer)

    @property
    def phase(self) -> SchedulePhase | None:
        """The phase of the next step, where the training has phases."""
        return self.lr_scheduler.phase if isinstance(self.lr_scheduler, Schedule) else None

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        phase, schedule = self.phase, self.lr_scheduler
        done = self.state.global_step / max(1, self.state.max_steps)
        self.task.before_step(schedule.progress if isinstance(schedule, Schedule) else done, phase)
        if self._can_capture(inputs):
            assert self.captured is not None
            loss = self.captured(inputs, self._solver_config(), 0 if phase is None else phase.kind)
            self.loss.accumulate()
            return loss
        return super().training_step(model, inputs, num_items_in_batch)

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *_: Any, **__: Any) -> Any:
        # Not by Accelerate, which rebuilds outputs from their entries and would lose the numbers of evaluations.
        mixed = self.autocast_dtype is not None
        try:
            with torch.autocast(self.args.device.type, dtype=self.autocast_dtype, enabled=mixed):
                loss = self.loss(model, inputs, self._solver_config())
            self.loss.accumulate()
            return loss
        except IntegrationError as error:
            if not all(torch.isfinite(weight).all() for weight in self.network.parameters()):
                DivergenceGuard(self.checkpoints).check(math.nan, self.state.global_step, self.network)
            message = f"after step {self.state.global_step} {error} {last_good(self.checkpoints)}"
            raise DivergedError(message.rstrip()) from error

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if "loss" in logs:
            method = getattr(getattr(self.network, "solver_config", None), "method", None)
            tolerance = {"rtol": method.rtol} if isinstance(method, AdaptiveSolver) else {}
            logs |= {**self.loss.pop_means(), **tolerance}
        super().log(logs, *args, **kwargs)

    def _solver_config(self) -> SolverConfig | None:
        sampler = self.task.sampler if self.phase is None else self.phase.sampler
        return None if sampler is None else sampler.draw(self.state.global_step)

    def _can_capture(self, inputs: dict[str, Any]) -> bool:
        """Whether this batch can be replayed; a shorter last batch of an epoch is computed as usual."""
        if not (self.captures and self.args.device.type == "cuda" and self.args.world_size == 1):
            return False
        if self.captured is None:
            self.network.train()
            self.captured = CapturedStep(self.network, inputs, self.autocast_dtype, self.loss)
        return self.captured.fits(inputs)

    def capture_all(self) -> None:
        """Compile and capture every solver config now, on the first batch, so that no later step waits."""
        batch = next(iter(self.task.batches))
        if self._can_capture(batch) and self.captured is not None:
            phases: Sequence[SchedulePhase | None] = self.task.schedule or [None]
            for phase in phases:
                self.task.before_step(phase.end - phase.share if phase else 0.0, phase)
                sampler = phase.sampler if phase else self.task.sampler
                for solver_config in sampler.configs if sampler else [None]:
                    self.captured(batch, solver_config, phase.kind if phase else 0)
        self.loss.evaluations.clear()
        self.network.zero_grad()

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Validation accuracy of the averaged weights, which are saved when it is the best so far.

        With several phases only the last one selects, by the mean over its `eval_configs`: weights that were best
        before have not been trained on its loss yet.
        """
        phase = self.phase
        averaged = nullcontext() if self.average is None else self.average.in_place()
        # A compiled field would be compiled again for evaluation, and once more for a shorter last batch.
        with averaged, torch.compiler.set_stance("force_eager"):
            scores = {
                solver_config: evaluate_batches(
                    self.task.model,
                    self.task.validation,
                    solver_config=solver_config,
                    autocast=self.autocast_dtype,
                    reduce=lambda totals: self.accelerator.reduce(totals, "sum"),
                )
                for solver_config in ([None] if phase is None else phase.eval_configs)
            }
            prefix, count = metric_key_prefix, len(scores)
            accuracy = sum(score.top1 for score in scores.values()) / count
            metrics = {f"{prefix}_accuracy": accuracy, f"{prefix}_loss": next(iter(scores.values())).loss}
            if count > 1:
                metrics |= {
                    f"{prefix}_accuracy_{solver_config.name}_{solver_config.steps}": s.top1
                    for solver_config, s in scores.items()
                    if solver_config
                }
            self.log(metrics)
            self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
            best = self.state.best_metric
            if self.args.should_save and self._selects and (best is None or accuracy > best):
                self.save_best()
        return metrics

    @property
    def _selects(self) -> bool:
        return self.phase is None or self.phase == self.task.schedule[-1]

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        return self._selects and super()._determine_best_metric(metrics, trial)

    def save_best(self) -> None:
        """Write the weights to a new file, then replace the best ones: a killed process leaves one complete file."""
        fresh = self.best.with_suffix(".new")
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        with _disk_errors(fresh):
            save_model(self.network, str(fresh))
        os.replace(fresh, self.best)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        DivergenceGuard(self.checkpoints).check(float(self._tr_loss), self.state.global_step, self.network)
        checkpoint = self.checkpoints / f"checkpoint-{self.state.global_step}"
        with _disk_errors(checkpoint):
            super()._save_checkpoint(model, trial)
            if self.args.should_save:
                if self.average is not None:
                    self.average.save(checkpoint / AVERAGE)
                (checkpoint / COMPLETE).touch()

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None and self.average is not None:
            self.average.load(Path(checkpoint) / AVERAGE)


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    """On a full disk, remove the incomplete file and raise an error that says what to do."""
    try:
        yield
    except Exception as error:
        # safetensors has its own error for a full disk, which quotes the system.
        full = isinstance(error, OSError) and error.errno == errno.ENOSPC
        if not full and "No space left on device" not in str(error):
            raise
        path.unlink(missing_ok=True) if path.is_file() else shutil.rmtree(path, ignore_errors=True)
        free = shutil.disk_usage(path.parent).free / 2**20
        raise OSError(
            errno.ENOSPC,
            f"the disk is full ({free:.0f} MiB free): {path} could not be written and was removed; earlier "
            "checkpoints are untouched. Make room, then continue with resume=true",
        ) from error


class DivergedError(RuntimeError):
    """The loss is no longer a number."""


class RunLog(TrainerCallback):
    """Write every logged number as a line of JSON, and print a line for every evaluation.

    A resumed run first drops the lines that it will write again, and counts the seconds before the interruption.
    """

    def __init__(self, path: Path, goal: str = "", score: str = "validation") -> None:
        self.path = path
        self.goal = goal
        self.score = score
        self.loss: float | None = None
        self.started = time.perf_counter()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            lines = read_metrics(self.path) if state.global_step else []
            earlier = [line for line in lines if line["step"] <= state.global_step]
            write_lines(self.path, earlier)
            self.started = time.perf_counter() - (earlier[-1]["seconds"] if earlier else 0.0)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero or not {"loss", "eval_accuracy"} & set(logs or ()):
            return
        seconds = time.perf_counter() - self.started
        phase = getattr(kwargs.get("lr_scheduler"), "phase", None)
        named = {} if phase is None else {"phase": phase.name}
        line = {"step": state.global_step, "seconds": round(seconds, 3), **named, **logs, "epoch": state.epoch}
        write_lines(self.path, [line], "a")
        self.loss = logs.get("loss", self.loss)
        if "eval_accuracy" in logs:
            loss, score = "" if self.loss is None else f"loss {self.loss:.4f}  ", logs["eval_accuracy"]
            where = f"epoch {state.epoch:5.1f}{self.goal}" + (f"  {phase.name}" if phase else "")
            print(f"{where}  {loss}{self.score} {score:.2%}  {seconds:.0f} s", flush=True)


class DivergenceGuard(TrainerCallback):
    """Stops a run whose loss is not finite, before it overwrites a good checkpoint.

    It checks whenever the loss is logged and before every checkpoint, not at every step: checking waits for the device.
    """

    def __init__(self, checkpoints: Path) -> None:
        self.checkpoints = checkpoints

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, model: Any = None, **kwargs: Any) -> None:
        if model is not None and "loss" in (logs or {}):
            self.check(logs["loss"], state.global_step, model)

    def check(self, loss: float, step: int, model: nn.Module) -> None:
        """Raise an error unless the loss is finite: the step, the weights concerned, and what to change."""
        if math.isfinite(loss):
            return
        broken = {
            ".".join(name.split(".")[:5]): None
            for name, parameter in model.named_parameters()
            for tensor in (parameter, parameter.grad)
            if tensor is not None and not torch.isfinite(tensor).all()
        }
        raise DivergedError(
            f"the loss became {loss} by step {step}; not finite: {', '.join(broken) or 'no weights so far'}. "
            f"{last_good(self.checkpoints)}Lower the learning rate, set train.clip=1.0, or use norm=layer with a leak; "
            "then start again"
        )


def last_good(checkpoints: Path) -> str:
    """A sentence about the last complete checkpoint; empty without one."""
    last = last_complete(checkpoints)
    return "" if last is None else f"The last good checkpoint is {last}, from which resume=true goes on. "


class FrozenUntil(TrainerCallback):
    """Weights that get no update while `frozen` is true."""

    def __init__(self, weights: Iterable[nn.Parameter]) -> None:
        self.weights = list(weights)
        self.frozen = True

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.frozen:
            for weight in self.weights:
                weight.grad = None
