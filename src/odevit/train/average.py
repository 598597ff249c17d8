"""w_avg <- d w_avg + (1 - d) w: the average of the weights that is evaluated and saved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn


class WeightAverage:
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
        from safetensors import safe_open

        loaded = load_file(path)
        with torch.no_grad():
            for name, value in zip(self.names, self.average, strict=True):
                value.copy_(loaded[name])
        with safe_open(path, framework="pt") as file:
            self.updates = int(file.metadata()["updates"])
