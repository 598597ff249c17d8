"""[B, N, D] -> [B, D]: what the head gets to see."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from odevit.model.layout import TokenLayout
from odevit.registry import Registry
from odevit.shapes import Tokens

POOLINGS: Registry[type[Pooling]] = Registry("pooling")


class Pooling(nn.Module, ABC):
    """[B, N, D] -> [B, D]."""

    def __init__(self, dim: int) -> None:
        super().__init__()

    @abstractmethod
    def forward(self, x: Tokens, layout: TokenLayout) -> Tensor:
        """One vector an image."""


@POOLINGS.register("cls")
class ClsPooling(Pooling):
    """x[CLS]."""

    def forward(self, x: Tokens, layout: TokenLayout) -> Tensor:
        return x[:, layout.cls].squeeze(1)


@POOLINGS.register("mean")
class MeanPooling(Pooling):
    """mean_i x_i over the patches; CLS and registers are left out."""

    def forward(self, x: Tokens, layout: TokenLayout) -> Tensor:
        return x[:, layout.patches].mean(dim=1)


@POOLINGS.register("attention")
class AttentionPooling(Pooling):
    """softmax_i(w . x_i) x over the patches: the sequence pooling of CCT (Hassani et al. 2021)."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.score = nn.Linear(dim, 1)

    def forward(self, x: Tokens, layout: TokenLayout) -> Tensor:
        patches = x[:, layout.patches]
        weights = self.score(patches).softmax(dim=1)
        return torch.matmul(weights.transpose(1, 2), patches).squeeze(1)
