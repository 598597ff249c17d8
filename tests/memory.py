"""How many bytes tensors hold at one time."""

from __future__ import annotations

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from odevit.field import VectorField
from odevit.solver import solve


class PeakMemory(TorchDispatchMode):
    """The largest number of bytes that tensors made inside the block held at one time."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self.seen = weakref.WeakSet()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage not in self.seen:
                    self.seen.add(storage)
                    size = storage.nbytes()
                    self.now += size
                    self.peak = max(self.peak, self.now)
                    weakref.finalize(storage, self._free, size)
        return out

    def _free(self, size):
        self.now -= size


def peak_of_training_step(steps, checkpoint):
    """The peak of a forward and backward pass of a small field over so many steps."""
    field = VectorField(64, 4, 4.0, leak=1.0)
    x0 = torch.randn(8, 65, 64)
    with PeakMemory() as memory:
        solve(field, x0, solver="lie_trotter", steps=steps, t1=6.0, checkpoint=checkpoint).state.mean().backward()
    return memory.peak
