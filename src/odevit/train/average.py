"""w_avg <- d w_avg + (1 - d) w: the average of the weights that is evaluated and saved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import TrainerCallback


class WeightAverage(TrainerCallback):
    """w_avg <- d w_avg + (1 - d) w after every step, d rising to `decay` as (1 + n)/(10 + n).

    Early on the average is short, so that it does not drag the initial weights along.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.names = [name for name, _ in model.named_parameters()]
        self.parameters: list[Tensor] = list(model.parameters())
        self.average: list[Tensor] = [parameter.detach().clone() for parameter in self.parameters]
        self.updates = 0

    @torch.no_grad()
    def update(self) -> None:
        """Include the current weights."""
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        torch._foreach_lerp_(self.average, [p.detach() for p in self.parameters], 1.0 - decay)
        self.updates += 1

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.update()

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside this block the model has the averaged weights. Values are copied, so captured graphs stay valid."""
        own = [parameter.detach().clone() for parameter in self.parameters]
        self._copy_in(self.average)
        try:
            yield
        finally:
            self._copy_in(own)

    @torch.no_grad()
    def _copy_in(self, values: list[Tensor]) -> None:
        torch._foreach_copy_(self.parameters, values)

    def save(self, path: Path) -> None:
        """Write the average and the number of steps it has seen."""
        tensors = {name: value.contiguous() for name, value in zip(self.names, self.average, strict=True)}
        save_file(tensors, path, metadata={"updates": str(self.updates)})

    def load(self, path: Path) -> None:
        """Continue from a saved average."""
        with torch.no_grad(), safe_open(path, framework="pt") as file:
            for name, value in zip(self.names, self.average, strict=True):
                value.copy_(file.get_tensor(name))
            self.updates = int(file.metadata()["updates"])
