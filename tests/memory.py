"""How many bytes tensors hold at one time."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from odevit.core.field import VectorField
from odevit.core.solve import solve


class PeakMemory(TorchDispatchMode):
    """max_t sum of bytes(t): the most bytes that tensors made inside the block held at one time, on any device."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.seen: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and (storage := tensor.untyped_storage()) not in self.seen:
                self.seen.add(storage)
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self._free, storage.nbytes())
        return out

    def _free(self, size: int) -> None:
        self.now -= size


def peak_of_training_step(steps, checkpoint):
    """The peak of a forward and backward pass of a small field over so many steps."""
    field = VectorField(64, 4, 4.0, leak=1.0)
    x0 = torch.randn(8, 65, 64)
    with PeakMemory() as memory:
        solve(field, x0, solver="lie_trotter", steps=steps, t1=6.0, checkpoint=checkpoint).state.mean().backward()
    return memory.peak
