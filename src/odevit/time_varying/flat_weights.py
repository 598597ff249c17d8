"""v_k = [vec W_1; vec W_2; ...]: the weights of a knot as one vector, and modules that compute with given weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from odevit.time_varying.knot_schedule import Position

Weights = Mapping[str, Tensor]
"""Weights of a module by their names in it."""
M = TypeVar("M", bound=nn.Module)


class FlatWeights:
    """Weights of the same names, one vector for each knot.

    Interpolating each weight by itself takes about 1,700 kernels of two microseconds for twelve steps of a small ViT,
    forward and backward, 40% of a training step. As vectors it is one lerp for each step.

    Args:
        knots: the weights of each, by name.
        names: of those to be flattened.
    """

    def __init__(self, knots: Sequence[Weights], names: Iterable[str]) -> None:
        first = knots[0]
        # Large ones first, so that matrices are aligned for tensor cores.
        self.names = sorted(names, key=lambda name: -first[name].numel())
        self.shapes = [first[name].shape for name in self.names]
        self.vectors = [torch.cat([knot[name].flatten() for name in self.names]) for knot in knots]

    def interpolate(self, k: int, w: float) -> Tensor:
        """(1 - w) v_k + w v_{k+1}."""
        return self.vectors[k] if w == 0.0 else torch.lerp(self.vectors[k], self.vectors[k + 1], w)

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """The weights in a vector, by name."""
        parts = vector.split([shape.numel() for shape in self.shapes])
        return {n: part.view(shape) for n, part, shape in zip(self.names, parts, self.shapes, strict=True)}


class FlatKnots:
    """W(t) = interpolated knots + interpolated changes, for all weights at once.

    Args:
        knots: the weights of each, by name.
        changes: the changes of some of them, all with the same names; none unless given.
    """

    def __init__(self, knots: Sequence[Weights], changes: Sequence[Weights] = ()) -> None:
        changed = set(changes[0]) if changes else set()
        self.unchanged = FlatWeights(knots, knots[0].keys() - changed) if knots[0].keys() - changed else None
        self.changed = FlatWeights(knots, changed) if changed else None
        self.changes = FlatWeights(changes, changed) if changed else None

    def __call__(self, knot: Position, change: Position) -> dict[str, Tensor]:
        """The weights at a position between two knots and one between two changes."""
        weights = {} if self.unchanged is None else self.unchanged.split(self.unchanged.interpolate(*knot))
        if self.changed is not None and self.changes is not None:
            weights |= self.changed.split(self.changed.interpolate(*knot) + self.changes.interpolate(*change))
        return weights


def can_be_flattened(weights: Iterable[Tensor]) -> bool:
    """Whether weights can be one vector: plain parameters of one dtype on one device."""
    kinds = {(type(weight), weight.dtype, weight.device) for weight in weights}
    return len(kinds) == 1 and next(iter(kinds))[0] is nn.Parameter


def named_weights(module: nn.Module) -> dict[str, Tensor]:
    """The weights of a module by name."""
    return dict(module.named_parameters(remove_duplicate=False))


def functional_copy(module: M, weights: Weights, prefix: str = "") -> M:
    """A copy of a module that computes with these tensors, given by the names of its parameters.

    Only the tree of modules is copied: other threads may be using the module itself. The tensors are buffers of the
    copy, so that it can be moved and cast, and gradients reach the tensors from which they were computed.
    """
    if "forward" in vars(module):
        raise ValueError(
            f"a {type(module).__name__} has its own forward, as Accelerate sets it for modules whose weights it moves, "
            "and cannot use interpolated weights; load the model without offloading and without device_map='auto'"
        )
    if hasattr(module, "_packed_params"):
        raise ValueError(
            f"the weights of a quantised {type(module).__name__} are packed and cannot be interpolated; quantise a "
            "field with knots=1 or blend='constant', and vector_knots=None"
        )
    copy = object.__new__(type(module))
    copy.__dict__.update(module.__dict__)
    parameters = module._parameters
    given = {name: weights[prefix + name] for name, weight in parameters.items() if weight is not None}
    copy.__dict__["_parameters"] = {name: None for name in parameters if name not in given}
    copy.__dict__["_buffers"] = module._buffers | given
    copy.__dict__["_modules"] = {
        name: None if part is None else functional_copy(part, weights, f"{prefix}{name}.")
        for name, part in module._modules.items()
    }
    return copy
