"""What was made of weights, as long as none of them has changed."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from odevit.core.field import VectorField

Made = dict[Any, VectorField]
"""Fields between the knots, by their places."""


class BlendCache:
    """Blended fields, as long as no weight has changed. No part of the field: neither copied nor saved with it."""

    def __init__(self, owner: nn.Module | None = None) -> None:
        self.stamp = [] if owner is None else _stamp(owner)
        # As long as the weights of that moment are held here, no others can come to lie where they lay.
        self.held = [] if owner is None else [weight.detach() for weight in owner.parameters()]
        self.made: tuple[Made, Made] = ({}, {})
        """What was made outside of inference mode, which can be differentiated by others, and within it."""

    def fits(self, owner: nn.Module) -> bool:
        return self.stamp == _stamp(owner)

    def __reduce__(self) -> tuple[type[BlendCache], tuple[()]]:
        return BlendCache, ()


def _stamp(owner: nn.Module) -> list[Any]:
    """Whether autocast is on, where every weight lies, and how often it was changed.

    Autocast makes something else of products, such as those of changes of a low rank. Weights are gone through by hand,
    since `parameters()` takes as long as a small step.
    """
    stamp: list[Any] = [(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")]
    modules = [owner]
    for module in modules:
        modules += [part for part in module._modules.values() if part is not None]
        for weight in module._parameters.values():
            if weight is not None:
                stamp += [weight.data_ptr(), 0 if weight.is_inference() else weight._version]
    return stamp


def usable(kept: BlendCache | None, made: Made | None) -> Made | None:
    """Where to look for a field and to leave it: with what is kept, or, where it may not be kept, with `made`.

    What was made with a gradient, or within a function transform, means nothing to anybody else.
    """
    if kept is None or torch.is_grad_enabled() or in_transform():
        return made
    return kept.made[torch.is_inference_mode_enabled()]


def in_transform() -> bool:
    """Whether a function transform (jvp, vmap) is at work, whose tensors lie nowhere and have no numbers to look at."""
    return torch._C._functorch.peek_interpreter_stack() is not None
