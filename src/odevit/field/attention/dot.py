"""softmax(q k^T / sqrt(d)) v: the attention of the Transformer and of the paper (eq. 4), and its bounded sibling."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from odevit.field.attention.multi_head import ATTENTIONS, Attention, attend
from odevit.field.dynamics import Observer
from odevit.field.projection import Projection
from odevit.tokens import Tokens

TAU = 10.0
"""The temperature LipsFormer fixes."""


@ATTENTIONS.register("dot")
class DotProductAttention(Attention):
    """G(x) = concat_h [ softmax(q_h k_h^T / sqrt(d)) v_h ] W_O.

    Not Lipschitz on unbounded sets (Kim et al. 2021): a norm before it bounds the tokens and with them the constant.
    """

    def __init__(self, dim: int, heads: int, bias: bool = False) -> None:
        super().__init__(dim, heads, bias)
        self.q_proj = Projection(dim, dim, bias=bias)
        self.k_proj = Projection(dim, dim, bias=bias)
        self.v_proj = Projection(dim, dim, bias=bias)
        self.o_proj = Projection(dim, dim, bias=bias)

    def forward(self, x: Tokens, gate: Tensor | None = None, observer: Observer | None = None) -> Tokens:
        q, k, v = self.split(self.q_proj(x)), self.split(self.k_proj(x)), self.split(self.v_proj(x))
        mixed = attend(q, k, v, scale=self.head_dim**-0.5, gate=gate, observer=observer)
        return self.o_proj(self.merge(mixed))


@ATTENTIONS.register("cosine")
class CosineAttention(DotProductAttention):
    """G(x) = concat_h [ softmax(tau q_h k_h^T / (|q_h| |k_h|)) v_h ] W_O, tau = 10.

    Scaled cosine similarity attention of LipsFormer (Qi et al. 2023): every score lies in [-tau, tau].
    """

    def forward(self, x: Tokens, gate: Tensor | None = None, observer: Observer | None = None) -> Tokens:
        q, k, v = self.split(self.q_proj(x)), self.split(self.k_proj(x)), self.split(self.v_proj(x))
        # normalize is not on autocast's list and returns what it was given, so the unit length holds in q's dtype.
        q, k = F.normalize(q, dim=-1, eps=1e-6), F.normalize(k, dim=-1, eps=1e-6)
        return self.o_proj(self.merge(attend(q, k, v, scale=TAU, gate=gate, observer=observer)))
