"""[B, N, D] -> [B, D]: what the head gets to see."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from odevit.registry import Registry
from odevit.tokens import TokenLayout, Tokens

POOLINGS: Registry[type[Pooling]] = Registry("pooling")


class Pooling(nn.Module, ABC):
    """sum_i w_i x_i, [B, N, D] -> [B, D]."""

    query: ClassVar[str]
    """Who looks at the image when the head does, in words."""
    needs_cls: ClassVar[bool] = False

    def __init__(self, dim: int) -> None:
        super().__init__()

    @abstractmethod
    def forward(self, x: Tokens, layout: TokenLayout) -> Tensor:
        """One vector per image."""

    @abstractmethod
    def weights(self, x: Tokens, layout: TokenLayout) -> Tensor:
        """w [B, N], which sum to one."""


@POOLINGS.register("cls")
class ClsPooling(Pooling):
    """x[CLS]."""

    query = "CLS"
    needs_cls = True

    def forward(self, x: Tokens, layout: TokenLayout) -> Tensor:
        return x[:, layout.cls].squeeze(1)

    def weights(self, x: Tokens, layout: TokenLayout) -> Tensor:
        return _at(x, layout.cls, 1.0)


@POOLINGS.register("mean")
class MeanPooling(Pooling):
    """mean_i x_i over the patches; CLS and registers are left out."""

    query = "mean of patches"

    def forward(self, x: Tokens, layout: TokenLayout) -> Tensor:
        return x[:, layout.patches].mean(dim=1)

    def weights(self, x: Tokens, layout: TokenLayout) -> Tensor:
        return _at(x, layout.patches, 1.0 / layout.num_patches)


@POOLINGS.register("attention")
class AttentionPooling(Pooling):
    """softmax_i(w . x_i) x over the patches: the sequence pooling of CCT (Hassani et al. 2021)."""

    query = "weighted mean of patches"

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.score = nn.Linear(dim, 1)

    def forward(self, x: Tokens, layout: TokenLayout) -> Tensor:
        patches = x[:, layout.patches]
        weights = self.score(patches).softmax(dim=1)
        return torch.matmul(weights.transpose(1, 2), patches).squeeze(1)

    def weights(self, x: Tokens, layout: TokenLayout) -> Tensor:
        return _at(x, layout.patches, self.score(x[:, layout.patches]).softmax(dim=1).squeeze(-1))


def _at(x: Tokens, tokens: slice, values: float | Tensor) -> Tensor:
    weights = x.new_zeros(x.shape[:2])
    weights[:, tokens] = values
    return weights
