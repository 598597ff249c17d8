"""W <- W + A B, v <- v + d: a low-rank change of shared weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn

from odevit.core.field import VectorField
from odevit.time_varying.flat_weights import Weights, named_weights


class LowRankChange(nn.Module):
    """W <- W + A B, v <- v + d: the change of shared weights at one knot, initially 0.

    Args:
        field: the field whose weights are changed.
        rank: of A B, the change of a matrix; 0 changes the vectors only, None makes the change of a matrix full.
    """

    def __init__(self, field: VectorField, rank: int | None) -> None:
        super().__init__()
        self.rank = rank
        for name, weight in named_weights(field).items():
            if weight.ndim == 1 or rank is None:
                self.register_parameter(_key(name), nn.Parameter(torch.zeros_like(weight)))
            elif rank:
                rows, columns = weight.flatten(1).shape
                left = nn.init.orthogonal_(weight.new_empty(rows, min(rank, rows, columns)))
                self.register_parameter(_key(name) + "_left", nn.Parameter(left))
                right = weight.new_zeros(left.shape[1], columns)
                self.register_parameter(_key(name) + "_right", nn.Parameter(right))

    def describe(self) -> str:
        """What it changes, in a few words."""
        return {0: "norms and biases", None: "changes"}.get(self.rank, f"changes of rank {self.rank}")

    def weights(self, names: Iterable[str]) -> dict[str, Tensor]:
        """The changes by the names of the weights in the field, without weights that do not change."""
        own = self._parameters
        changes: dict[str, Tensor] = {}
        for name in names:
            if (vector := own.get(_key(name))) is not None:
                changes[name] = vector
            elif (left := own.get(_key(name) + "_left")) is not None:
                changes[name] = left @ cast(Tensor, own[_key(name) + "_right"])
        return changes

    @torch.no_grad()
    def approximate(self, wanted: Weights) -> None:
        """Set this change to the best approximation of `wanted` with its rank, by a truncated SVD of each matrix."""
        own = self._parameters
        for name, value in wanted.items():
            if (vector := own.get(_key(name))) is not None:
                vector.copy_(value)
            elif (left := own.get(_key(name) + "_left")) is not None:
                u, s, v = torch.linalg.svd(value.flatten(1).float(), full_matrices=False)
                root = s[: left.shape[1]].sqrt()
                left.copy_(u[:, : len(root)] * root)
                cast(Tensor, own[_key(name) + "_right"]).copy_(root[:, None] * v[: len(root)])


def _key(name: str) -> str:
    return name.replace(".", "_")
