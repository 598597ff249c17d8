"""max_t sum of bytes(t): what a training step holds in memory at one time."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class PeakMemory(TorchDispatchMode):
    """The largest number of bytes that tensors made inside the block held at one time, on any device."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.seen: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if storage not in self.seen:
                    self.seen.add(storage)
                    size = storage.nbytes()
                    self.now += size
                    self.peak = max(self.peak, self.now)
                    weakref.finalize(storage, self._free, size)
        return out

    def _free(self, size: int) -> None:
        self.now -= size


def peak_bytes(step: Callable[[], Any], device: torch.device) -> int:
    """The bytes that `step` holds at its peak beyond those held before it; on CUDA as its allocator counts them."""
    if device.type != "cuda":
        with PeakMemory() as memory:
            step()
        return memory.peak
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    step()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before
