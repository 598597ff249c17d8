"""How many bytes tensors hold at one time."""

from __future__ import annotations

import torch

from odevit.compare.memory import PeakMemory
from odevit.core.field import VectorField
from odevit.core.solve import solve


def peak_of_training_step(steps, checkpoint):
    """The peak of a forward and backward pass of a small field over so many steps."""
    field = VectorField(64, 4, 4.0, leak=1.0)
    x0 = torch.randn(8, 65, 64)
    with PeakMemory() as memory:
        solve(field, x0, solver="lie_trotter", steps=steps, t1=6.0, checkpoint=checkpoint).state.mean().backward()
    return memory.peak
