"""What happens beside the training loop: the log, the progress, the guard against divergence."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback

from odevit.train.folder import last_complete


class DivergedError(RuntimeError):
    """The loss is no longer a number."""


class RunLog(TrainerCallback):
    """Every logged number as one line of JSON, and every evaluation as one plain line for people.

    A resumed run first drops the lines it will write again, and counts the seconds of its interrupted parts.
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
        part = getattr(kwargs.get("lr_scheduler"), "part", None)
        phase = {} if part is None else {"phase": part.name}
        line = {"step": state.global_step, "seconds": round(seconds, 3), **phase, **logs, "epoch": state.epoch}
        write_lines(self.path, [line], "a")
        self.loss = logs.get("loss", self.loss)
        if "eval_accuracy" in logs:
            loss, score = "" if self.loss is None else f"loss {self.loss:.4f}  ", logs["eval_accuracy"]
            where = f"epoch {state.epoch:5.1f}{self.goal}" + (f"  {part.name}" if part else "")
            print(f"{where}  {loss}{self.score} {score:.2%}  {seconds:.0f} s", flush=True)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of JSON lines; a last one that a kill cut short is left out."""
    if not path.exists():
        return []
    lines = []
    for text in path.read_text().splitlines():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            break
    return lines


def write_lines(path: Path, lines: list[dict[str, Any]], mode: str = "w") -> None:
    """Write a file of JSON lines, or append to it with the mode `a`."""
    with path.open(mode) as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


class DivergenceGuard(TrainerCallback):
    """Stops a run whose loss is no longer a number, before it can overwrite a good checkpoint.

    Looks whenever the loss is logged and before every checkpoint, not at every step: looking waits for the device.
    """

    def __init__(self, checkpoints: Path) -> None:
        self.checkpoints = checkpoints

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, model: Any = None, **kwargs: Any) -> None:
        if model is not None and "loss" in (logs or {}):
            self.check(logs["loss"], state.global_step, model)

    def check(self, loss: float, step: int, model: nn.Module) -> None:
        """Raise an error that says where it happened, what is left, and what to change, unless the loss is finite."""
        if math.isfinite(loss):
            return
        validate = {
            ".".join(name.split(".")[:5]): None
            for name, parameter in model.named_parameters()
            for tensor in (parameter, parameter.grad)
            if tensor is not None and not torch.isfinite(tensor).all()
        }
        raise DivergedError(
            f"the loss became {loss} by step {step}; not finite: {', '.join(validate) or 'no weights so far'}. "
            f"{last_good(self.checkpoints)}Lower the learning rate, set train.clip=1.0, or use norm=layer with a leak; "
            "then start again"
        )


def last_good(checkpoints: Path) -> str:
    """What a run that breaks off leaves behind, as a sentence; empty where no checkpoint was finished."""
    last = last_complete(checkpoints)
    return "" if last is None else f"The last good checkpoint is {last}, from which resume=true goes on. "


class FrozenUntil(TrainerCallback):
    """Weights that get no update as long as they are `held`."""

    def __init__(self, weights: Iterable[nn.Parameter]) -> None:
        self.weights = list(weights)
        self.frozen = True

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.frozen:
            for weight in self.weights:
                weight.grad = None
