"""Whatever is measured inside `with untouched(model)` leaves no trace on the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Within this context the model is in evaluation mode without gradients; after it everything is as it was.

    The mode of every module, what requires gradients, and the global random states are restored, also after an error.
    """
    modes = [(module, module.training) for module in model.modules()]
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        try:
            model.eval().requires_grad_(False)
            yield
        finally:
            for module, mode in modes:
                module.training = mode
            for parameter, flag in flags:
                parameter.requires_grad_(flag)
