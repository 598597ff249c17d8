"""softmax(scores) v in three kinds: by dot product, by angle, and by distance."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from odevit.attention.rotary import Rotary, Rotation, rotated
from odevit.core.attention import ATTENTIONS, Attention
from odevit.core.dynamics import AttentionHook
from odevit.core.norm import NORMS
from odevit.core.projection import Projection, matrix_of
from odevit.tokens import Heads, Tokens

TAU = 10.0
"""The temperature LipsFormer fixes."""


@ATTENTIONS.register("dot")
class DotProductAttention(Attention):
    """G(x) = concat_h [ softmax(q_h k_h^T / sqrt(d)) v_h ] W_O: the attention of the Transformer and the paper (eq. 4).

    Not Lipschitz on unbounded sets (Kim et al. 2021): a norm before it bounds the tokens and with them the constant.

    Args:
        qk_norm: name of a norm of every head's queries and keys, after ViT-22B (Dehghani et al. 2023).
        rotary: positions as rotations of queries and keys.
    """

    can_turn = True
    can_hide = True

    def __init__(
        self, dim: int, heads: int, bias: bool = False, *, qk_norm: str | None = None, rotary: Rotary | None = None
    ) -> None:
        super().__init__(dim, heads, bias)
        self.q_proj = Projection(dim, dim, bias=bias)
        self.k_proj = Projection(dim, dim, bias=bias)
        self.v_proj = Projection(dim, dim, bias=bias)
        self.o_proj = Projection(dim, dim, bias=bias)
        self.q_norm = None if qk_norm is None else NORMS[qk_norm](self.head_dim)
        self.k_norm = None if qk_norm is None else NORMS[qk_norm](self.head_dim)
        self.rotary = rotary

    def rotation(self, x: Tokens) -> Rotation | None:
        return None if self.rotary is None else self.rotary.rotation(x.shape[1], self.head_dim, x.device)

    def heads_of(self, x: Tokens, rotation: Rotation | None) -> tuple[Heads, Heads, Heads]:
        """q, k and v, the first two normed and turned where that was asked for."""
        q, k, v = self.split(self.q_proj(x)), self.split(self.k_proj(x)), self.split(self.v_proj(x))
        if self.q_norm is not None and self.k_norm is not None:
            # Under autocast a norm answers in single precision, and v is in half of it.
            q, k = self.q_norm(q).to(v.dtype), self.k_norm(k).to(v.dtype)
        rotation = self.rotation(x) if rotation is None else rotation
        return (q, k, v) if rotation is None else (rotated(q, rotation), rotated(k, rotation), v)

    def forward(
        self,
        x: Tokens,
        gate: Tensor | None = None,
        observer: AttentionHook | None = None,
        rotation: Rotation | None = None,
    ) -> Tokens:
        q, k, v = self.heads_of(x, rotation)
        mixed = self.attend(q, k, v, scale=self.head_dim**-0.5, gate=gate, observer=observer)
        return self.o_proj(self.merge(mixed))


@ATTENTIONS.register("cosine")
class CosineAttention(DotProductAttention):
    """G(x) = concat_h [ softmax(tau q_h k_h^T / (|q_h| |k_h|)) v_h ] W_O, tau = 10.

    Scaled cosine similarity attention of LipsFormer (Qi et al. 2023): every score lies in [-tau, tau].
    """

    def forward(
        self,
        x: Tokens,
        gate: Tensor | None = None,
        observer: AttentionHook | None = None,
        rotation: Rotation | None = None,
    ) -> Tokens:
        q, k, v = self.heads_of(x, rotation)
        # normalize is not on autocast's list and returns what it was given, so the unit length holds in q's dtype.
        q, k = F.normalize(q, dim=-1, eps=1e-6), F.normalize(k, dim=-1, eps=1e-6)
        return self.o_proj(self.merge(self.attend(q, k, v, scale=TAU, gate=gate, observer=observer)))


@ATTENTIONS.register("l2")
class L2Attention(Attention):
    """G(x) = concat_h [ P_h x A_h W_V^h ] W_O, P_ij ~ exp(-|q_i - q_j|^2 / sqrt(d)), A_h = W_Q^h W_Q^hT / sqrt(d).

    L2 self-attention of Kim et al. (2021). Query and key are one matrix and the value passes through A_h: both are
    needed for the Lipschitz proof, and neither projection may have a bias.
    """

    can_hide = True

    def __init__(self, dim: int, heads: int, bias: bool = False) -> None:
        super().__init__(dim, heads, bias)
        self.q_proj = Projection(dim, dim, bias=False)
        self.v_proj = Projection(dim, dim, bias=False)
        self.o_proj = Projection(dim, dim, bias=bias)

    def forward(self, x: Tokens, gate: Tensor | None = None, observer: AttentionHook | None = None) -> Tokens:
        root = self.head_dim**0.5
        q = self.split(self.q_proj(x))
        # x A_h W_V^h = q_h (W_Q^hT W_V^h) / sqrt(d): a small d x d matrix per head instead of a D x D one.
        w_q = matrix_of(self.q_proj, x).unflatten(0, (self.heads, self.head_dim))
        w_v = matrix_of(self.v_proj, x).unflatten(0, (self.heads, self.head_dim))
        v = q @ (w_q @ w_v.transpose(-2, -1) / root)
        # -|q_i - q_j|^2 = 2 q_i.q_j - |q_j|^2 - |q_i|^2: the last term is constant along a row and softmax drops it.
        bias = -q.square().sum(dim=-1).unsqueeze(-2) / root
        mixed = self.attend(q, q, v, scale=2.0 / root, bias=bias, gate=gate, observer=observer)
        return self.o_proj(self.merge(mixed))
