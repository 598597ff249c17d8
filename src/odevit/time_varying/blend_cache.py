"""Blended fields, kept until a weight changes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from odevit.core.field import VectorField
from odevit.core.solution import in_transform

Blends = dict[Any, VectorField]
"""Fields between the knots, by where they are."""


class BlendCache:
    """Blended fields, valid as long as no weight has changed. It is neither copied nor saved with the field."""

    def __init__(self, owner: nn.Module | None = None) -> None:
        self.stamp = [] if owner is None else _stamp(owner)
        # Held here, so that no other weights can be allocated at their addresses.
        self.held = [] if owner is None else [weight.detach() for weight in owner.parameters()]
        self.blends: tuple[Blends, Blends] = ({}, {})
        """Those made outside of inference mode and those made within it."""

    def fits(self, owner: nn.Module) -> bool:
        return self.stamp == _stamp(owner)

    def __reduce__(self) -> tuple[type[BlendCache], tuple[()]]:
        return BlendCache, ()


def _stamp(owner: nn.Module) -> list[Any]:
    """The autocast state, and the address and version of every weight.

    Autocast changes products, such as those of low-rank changes. The modules are walked here because `parameters()`
    takes as long as a small step.
    """
    stamp: list[Any] = [(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")]
    modules = [owner]
    for module in modules:
        modules += [part for part in module._modules.values() if part is not None]
        for weight in module._parameters.values():
            if weight is not None:
                stamp += [weight.data_ptr(), 0 if weight.is_inference() else weight._version]
    return stamp


def usable(cache: BlendCache | None, blends: Blends | None) -> Blends | None:
    """Where to look up and to store a blend: in the cache, or in `blends` where it may not be kept.

    A blend with a gradient, or made within a function transform, is of no use to another call.
    """
    if cache is None or torch.is_grad_enabled() or in_transform():
        return blends
    return cache.blends[torch.is_inference_mode_enabled()]
