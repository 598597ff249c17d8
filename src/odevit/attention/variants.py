"""softmax(scores) v with scores by angle (LipsFormer) or by distance (L2 attention)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from odevit.core.attention import ATTENTIONS, Attention, DotProductAttention, Rotation, attend
from odevit.core.base import AttentionHook
from odevit.core.layers import Projection, matrix_of
from odevit.tokens import Tokens

TAU = 10.0
"""The constant temperature of LipsFormer."""


@ATTENTIONS.register("cosine")
class CosineAttention(DotProductAttention):
    """G(x) = concat_h [ softmax(tau q_h k_h^T / (|q_h| |k_h|)) v_h ] W_O, tau = 10.

    Scaled cosine similarity attention of LipsFormer (Qi et al. 2023): every score lies in [-tau, tau].
    """

    def forward(
        self,
        x: Tokens,
        mask: Tensor | None = None,
        hook: AttentionHook | None = None,
        rotation: Rotation | None = None,
    ) -> Tokens:
        q, k, v = self.projected(x, rotation)
        # Autocast does not change normalize: it returns unit vectors in the dtype of q.
        q, k = F.normalize(q, dim=-1, eps=1e-6), F.normalize(k, dim=-1, eps=1e-6)
        return self.o_proj(self.merge(attend(q, k, v, scale=TAU, mask=mask, hook=hook, fused=self.fused)))


@ATTENTIONS.register("l2")
class L2Attention(Attention):
    """G(x) = concat_h [ P_h x A_h W_V^h ] W_O, P_ij ~ exp(-|q_i - q_j|^2 / sqrt(d)), A_h = W_Q^h W_Q^hT / sqrt(d).

    L2 self-attention of Kim et al. (2021). Query and key are one matrix and the value passes through A_h: both are
    needed for the Lipschitz proof, and neither projection may have a bias.
    """

    supports_token_mask = True

    def __init__(self, dim: int, heads: int, bias: bool = False) -> None:
        super().__init__(dim, heads, bias)
        self.q_proj = Projection(dim, dim, bias=False)
        self.v_proj = Projection(dim, dim, bias=False)
        self.o_proj = Projection(dim, dim, bias=bias)

    def forward(self, x: Tokens, mask: Tensor | None = None, hook: AttentionHook | None = None) -> Tokens:
        root = self.head_dim**0.5
        q = self.split(self.q_proj(x))
        # x A_h W_V^h = q_h (W_Q^hT W_V^h) / sqrt(d): a small d x d matrix per head instead of a D x D one.
        w_q = matrix_of(self.q_proj, x).unflatten(0, (self.heads, self.head_dim))
        w_v = matrix_of(self.v_proj, x).unflatten(0, (self.heads, self.head_dim))
        v = q @ (w_q @ w_v.transpose(-2, -1) / root)
        # -|q_i - q_j|^2 = 2 q_i.q_j - |q_j|^2 - |q_i|^2: softmax cancels the last term, which is constant in a row.
        bias = -q.square().sum(dim=-1).unsqueeze(-2) / root
        mixed = attend(q, q, v, scale=2.0 / root, bias=bias, mask=mask, hook=hook, fused=self.fused)
        return self.o_proj(self.merge(mixed))
