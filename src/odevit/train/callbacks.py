"""What happens beside the training loop: the log, the progress, the guard against divergence."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class DivergedError(RuntimeError):
    """The loss is no longer a number."""


class MetricsFile(TrainerCallback):
    """Every logged number as one line of JSON. A resumed run first drops the lines it will write again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.earlier_seconds = 0.0
        self.started = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Duration of the run so far, earlier interrupted parts included."""
        return self.earlier_seconds + time.perf_counter() - self.started

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if not state.is_world_process_zero:
            return
        lines = read_metrics(self.path) if state.global_step else []
        earlier = [line for line in lines if line["step"] <= state.global_step]
        self.path.write_text("".join(json.dumps(line) + "\n" for line in earlier))
        self.earlier_seconds = earlier[-1]["seconds"] if earlier else 0.0
        self.started = time.perf_counter()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        if state.is_world_process_zero and logs and ("loss" in logs or "eval_accuracy" in logs):
            line = {"step": state.global_step, "seconds": round(self.seconds, 3), **logs, "epoch": state.epoch}
            with self.path.open("a") as file:
                file.write(json.dumps(line) + "\n")


def read_metrics(path: Path) -> list[dict[str, float]]:
    """The lines of a metrics.jsonl; a last line that a kill cut short is left out."""
    if not path.exists():
        return []
    lines = []
    for text in path.read_text().splitlines():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            break
    return lines


class ProgressLines(TrainerCallback):
    """One plain line per evaluation, for logs and people."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs
        self.loss: float | None = None
        self.started = time.perf_counter()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        logs = logs or {}
        self.loss = logs.get("loss", self.loss)
        if state.is_world_process_zero and "eval_accuracy" in logs:
            loss = "" if self.loss is None else f"loss {self.loss:.4f}  "
            print(
                f"epoch {state.epoch:5.1f}/{self.epochs}  {loss}"
                f"validation {100 * logs['eval_accuracy']:.2f}%  "
                f"{time.perf_counter() - self.started:.0f} s",
                flush=True,
            )


class DivergenceGuard(TrainerCallback):
    """Stops a run whose loss is no longer a number, before it can overwrite a good checkpoint.

    Looks whenever the loss is logged and before every checkpoint, not at every step: looking waits for the device.
    """

    def __init__(self, checkpoints: Path) -> None:
        self.checkpoints = checkpoints

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        model: nn.Module | None = None,
        **kwargs: Any,
    ) -> None:
        loss = (logs or {}).get("loss")
        if loss is not None and not math.isfinite(loss) and model is not None:
            raise DivergedError(self.report(loss, state.global_step, model))

    def report(self, loss: float, step: int, model: nn.Module) -> str:
        """What happened and where, what is left, and what to change."""
        groups: dict[str, int] = {}
        for name, parameter in model.named_parameters():
            if not torch.isfinite(parameter).all() or (
                parameter.grad is not None and not torch.isfinite(parameter.grad).all()
            ):
                group = ".".join(name.split(".")[:5])
                groups[group] = groups.get(group, 0) + 1
        where = ", ".join(groups) or "none of the weights yet"
        return (
            f"the loss became {loss} by step {step}; not finite: {where}. "
            f"The last good checkpoint is in {self.checkpoints}. Lower the learning rate, set train.clip=1.0, "
            "or use norm=layer with a leak; then start again, or resume=true from that checkpoint"
        )
