"""y = (x - m) V: the plane in which states vary most, and their points in it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Plane:
    """y = (x - m) V, V the two leading principal axes. Distances in it are never longer than the true ones.

    Args:
        centre: m [dim].
        axes: V transposed [2, dim], orthonormal.
        explained: the share of the variance along each axis.
    """

    centre: Tensor
    axes: Tensor
    explained: tuple[float, float]

    @classmethod
    def through(cls, *groups: Tensor) -> Plane:
        """The plane in which several groups of states [..., dim] vary most together."""
        together = torch.cat([group.flatten(0, -2) for group in groups]).double()
        centre = together.mean(dim=0)
        _, lengths, axes = torch.linalg.svd(together - centre, full_matrices=False)
        if len(axes) < 2:
            raise ValueError("one state, or one dimension, spans no plane; expected at least two of each")
        # The sign of an axis is arbitrary; fixed here, so that the same states are never drawn mirrored.
        largest = axes[:2].gather(1, axes[:2].abs().argmax(dim=1, keepdim=True))
        shares = lengths.square() / lengths.square().sum().clamp_min(1e-30)
        return cls(centre, axes[:2] * largest.sign(), (float(shares[0]), float(shares[1])))

    def points(self, states: Tensor) -> Tensor:
        """[..., dim] -> [..., 2]."""
        return ((states.double() - self.centre) @ self.axes.T).float()
