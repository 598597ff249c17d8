"""F(x) = W_2 gelu(W_1 x): what happens within each token."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from odevit.field.dynamics import Observer
from odevit.field.projection import Projection
from odevit.tokens import Tokens


class Mlp(nn.Module):
    """F(x) = W_2 gelu(W_1 x + b_1) + b_2, of hidden width `ratio * dim`."""

    def __init__(self, dim: int, ratio: float, bias: bool) -> None:
        super().__init__()
        hidden = round(dim * ratio)
        self.up_proj = Projection(dim, hidden, bias=bias)
        self.down_proj = Projection(hidden, dim, bias=bias)

    def forward(self, x: Tokens, gate: Tensor | None = None, observer: Observer | None = None) -> Tokens:
        hidden = F.gelu(self.up_proj(x))
        if gate is not None:
            hidden = hidden * gate
        return self.down_proj(hidden)

    def gate_shape(self, x: Tokens) -> tuple[int, ...]:
        """The shape of what its dropout mask multiplies: the hidden units."""
        batch, tokens, _ = x.shape
        return batch, tokens, self.up_proj.out_features
