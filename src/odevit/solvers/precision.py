"""autocast, kept where it has to hold, and kept away from where it must not."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def precision_now(x: Tensor) -> torch.autocast:
    """The mixed precision that holds at this place for tensors like x, or none: to be entered where it is over.

    What is computed when gradients arrive has then the precision of what was computed before.
    """
    kind = x.device.type
    return torch.autocast(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))


def only_inside(method: Callable[..., T]) -> Callable[..., T]:
    """Let mixed precision hold for g alone in method(g, x0, ...), and not for what the method does with its values.

    A search that combines its states in half precision comes no nearer to a fixed point than half precision is fine.
    """

    @wraps(method)
    def precise(g: Callable[..., Tensor], x0: Tensor, **options: Any) -> T:
        outside = precision_now(x0)

        def mixed(*values: Tensor) -> Tensor:
            with outside:
                return g(*values)

        with torch.autocast(x0.device.type, enabled=False):
            return method(mixed, x0, **options)

    return precise
