"""v_k = [vec W_1; vec W_2; ...]: the weights of a knot as one vector, blended by one operation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from odevit.time_varying.knot_schedule import Between

Weights = Mapping[str, Tensor]
"""Weights of a module by their names in it."""


class FlatWeights:
    """Weights of the same names, one vector for each knot.

    Blended one by one, the weights of twelve steps of a small ViT are some 1,700 kernels of two microseconds, forward
    and back: two in five of a whole training step. As vectors they are one lerp a step, whose gradients are added up
    as vectors as well.

    Args:
        knots: the weights of each, by name.
        names: of those to be flattened.
    """

    def __init__(self, knots: Sequence[Weights], names: Iterable[str]) -> None:
        first = knots[0]
        # Large ones first, so that matrices are aligned for the matrix units.
        self.names = sorted(names, key=lambda name: -first[name].numel())
        self.shapes = [first[name].shape for name in self.names]
        self.vectors = [torch.cat([knot[name].flatten() for name in self.names]) for knot in knots]

    def between(self, k: int, w: float) -> Tensor:
        """(1 - w) v_k + w v_{k+1}."""
        return self.vectors[k] if w == 0.0 else torch.lerp(self.vectors[k], self.vectors[k + 1], w)

    def parts(self, vector: Tensor) -> dict[str, Tensor]:
        """The weights within a vector, by name."""
        pieces = vector.split([shape.numel() for shape in self.shapes])
        return {n: piece.view(shape) for n, piece, shape in zip(self.names, pieces, self.shapes, strict=True)}


class FlatKnots:
    """W(t) = blend of knots + blend of changes, of all weights at once.

    Args:
        knots: the weights of each, by name.
        changes: what is added to some of them, of the same names each; none unless given.
    """

    def __init__(self, knots: Sequence[Weights], changes: Sequence[Weights] = ()) -> None:
        changed = set(changes[0]) if changes else set()
        self.fixed = FlatWeights(knots, knots[0].keys() - changed) if knots[0].keys() - changed else None
        self.changed = FlatWeights(knots, changed) if changed else None
        self.added = FlatWeights(changes, changed) if changed else None

    def __call__(self, knot: Between, change: Between) -> dict[str, Tensor]:
        """The weights between two knots and between two changes."""
        weights = {} if self.fixed is None else self.fixed.parts(self.fixed.between(*knot))
        if self.changed is not None and self.added is not None:
            weights |= self.changed.parts(self.changed.between(*knot) + self.added.between(*change))
        return weights


def can_be_flattened(weights: Iterable[Tensor]) -> bool:
    """Whether weights can be one vector: plain parameters of one dtype on one device."""
    kinds = {(type(weight), weight.dtype, weight.device) for weight in weights}
    return len(kinds) == 1 and next(iter(kinds))[0] is nn.Parameter


def named_weights(module: nn.Module) -> dict[str, Tensor]:
    """The weights of a module by name."""
    return dict(module.named_parameters(remove_duplicate=False))
