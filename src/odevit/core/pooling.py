"""[B, N, D] -> [B, D]: what the head gets to see."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor, nn

from odevit.registry import Registry
from odevit.tokens import TokenLayout, Tokens

POOLINGS: Registry[type[Pooling]] = Registry("pooling")


class Pooling(nn.Module, ABC):
    """sum_i w_i x_i over CLS or over the patches, [B, N, D] -> [B, D]."""

    query: ClassVar[str]
    """Who looks at the image when the head does, in words."""
    needs_cls: ClassVar[bool] = False

    def __init__(self, dim: int) -> None:
        super().__init__()

    @abstractmethod
    def forward(self, x: Tokens, layout: TokenLayout) -> Tensor:
        """One vector per image."""

    def weights(self, x: Tokens, layout: TokenLayout) -> Tensor:
        """w [B, N], which sum to one; zero for the tokens that are not read."""
        read = layout.cls if self.needs_cls else layout.patches
        weights = x.new_zeros(x.shape[:2])
        weights[:, read] = self.shares(x[:, read])
        return weights

    def shares(self, read: Tokens) -> Tensor | float:
        """w of the tokens that are read; they count alike unless a subclass weighs them."""
        return 1.0 / read.shape[1]


@POOLINGS.register("cls")
class ClsPooling(Pooling):
    """x[CLS]."""

    query = "CLS"
    needs_cls = True

    def forward(self, x: Tokens, layout: TokenLayout) -> Tensor:
        return x[:, layout.cls].squeeze(1)


@POOLINGS.register("mean")
class MeanPooling(Pooling):
    """mean_i x_i over the patches; CLS and registers are left out."""

    query = "mean of patches"

    def forward(self, x: Tokens, layout: TokenLayout) -> Tensor:
        return x[:, layout.patches].mean(dim=1)


@POOLINGS.register("attention")
class AttentionPooling(Pooling):
    """softmax_i(w . x_i) x over the patches: the sequence pooling of CCT (Hassani et al. 2021)."""

    query = "weighted mean of patches"

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.score = nn.Linear(dim, 1)

    def forward(self, x: Tokens, layout: TokenLayout) -> Tensor:
        patches = x[:, layout.patches]
        return (self.shares(patches)[:, None] @ patches).squeeze(1)

    def shares(self, read: Tokens) -> Tensor:
        return self.score(read).softmax(dim=1).squeeze(-1)
