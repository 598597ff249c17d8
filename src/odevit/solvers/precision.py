"""torch.autocast: the same mixed precision in a later backward pass, and none inside a search."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def current_autocast(x: Tensor) -> torch.autocast:
    """A context manager with the autocast state of now, for the device of x.

    A function that runs in the backward pass enters it to compute in the precision of the forward pass.
    """
    kind = x.device.type
    return torch.autocast(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))


def autocast_map_only(method: Callable[..., T]) -> Callable[..., T]:
    """Decorator of method(g, x0, ...): autocast applies to g, and not to what the method computes from its values.

    A search that combines states in half precision cannot reach residuals below half precision.
    """

    @wraps(method)
    def without_autocast(g: Callable[..., Tensor], x0: Tensor, **options: Any) -> T:
        outside = current_autocast(x0)

        def autocast_g(*values: Tensor) -> Tensor:
            with outside:
                return g(*values)

        with torch.autocast(x0.device.type, enabled=False):
            return method(autocast_g, x0, **options)

    return without_autocast
