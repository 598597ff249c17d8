"""softmax(scores) v in four kinds: by dot product, by angle, by distance, and down the gradient of an energy."""

from __future__ import annotations

import torch
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
    """G(x) = concat_h [ softmax(q_h k_h^T / sqrt(d)) v_h ] W_O: the attention of the Transformer and the paper (eq. 4).

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


@ATTENTIONS.register("l2")
class L2Attention(Attention):
    """G(x) = concat_h [ P_h x A_h W_V^h ] W_O, P_ij ~ exp(-|q_i - q_j|^2 / sqrt(d)), A_h = W_Q^h W_Q^hT / sqrt(d).

    L2 self-attention of Kim et al. (2021). Query and key are one matrix and the value passes through A_h: both are
    needed for the Lipschitz proof, and neither projection may have a bias.
    """

    def __init__(self, dim: int, heads: int, bias: bool = False) -> None:
        super().__init__(dim, heads, bias)
        self.q_proj = Projection(dim, dim, bias=False)
        self.v_proj = Projection(dim, dim, bias=False)
        self.o_proj = Projection(dim, dim, bias=bias)

    def forward(self, x: Tokens, gate: Tensor | None = None, observer: Observer | None = None) -> Tokens:
        root = self.head_dim**0.5
        q = self.split(self.q_proj(x))
        # x A_h W_V^h = q_h (W_Q^hT W_V^h) / sqrt(d): a small d x d matrix per head instead of a D x D one.
        w_q = self.q_proj.weight.unflatten(0, (self.heads, self.head_dim))
        w_v = self.v_proj.weight.unflatten(0, (self.heads, self.head_dim))
        v = q @ (w_q @ w_v.transpose(-2, -1) / root)
        # -|q_i - q_j|^2 = 2 q_i.q_j - |q_j|^2 - |q_i|^2: the last term is constant along a row and softmax drops it.
        bias = -q.square().sum(dim=-1).unsqueeze(-2) / root
        mixed = attend(q, q, v, scale=2.0 / root, bias=bias, gate=gate, observer=observer)
        return self.o_proj(self.merge(mixed))


@ATTENTIONS.register("hopfield")
class HopfieldAttention(Attention):
    """G(x_i) = sum_h W_Q^hT softmax(beta q_i^h k_h^T) k_h = -dE/dx_i, beta = 1/sqrt(d).

    The association step of modern Hopfield networks (Ramsauer et al. 2020): keys are the stored patterns and the
    values too, and the output goes back through W_Q^T. It is then the gradient of `energy` at stored patterns held
    still, with two matrices instead of four. The quadratic part of the Hopfield energy is the field's leak.
    """

    def __init__(self, dim: int, heads: int, bias: bool = False) -> None:
        super().__init__(dim, heads, bias)
        self.q_proj = Projection(dim, dim, bias=False)
        self.k_proj = Projection(dim, dim, bias=False)

    @property
    def beta(self) -> float:
        """The inverse temperature: small ones average all patterns, large ones retrieve a single one."""
        return self.head_dim**-0.5

    def forward(
        self, x: Tokens, gate: Tensor | None = None, observer: Observer | None = None, stored: Tokens | None = None
    ) -> Tokens:
        q, k = self.split(self.q_proj(x)), self.split(self.k_proj(x if stored is None else stored))
        mixed = self.merge(attend(q, k, k, scale=self.beta, gate=gate, observer=observer))
        return mixed @ self.q_proj.weight

    def energy(self, x: Tokens, stored: Tokens) -> Tensor:
        """E(x) = -1/beta sum_h sum_i logsumexp_j(beta q_i^h . k_j^h), per sample."""
        q, k = self.split(self.q_proj(x)), self.split(self.k_proj(stored))
        scores = self.beta * (q @ k.transpose(-2, -1))
        return -torch.logsumexp(scores, dim=-1).sum(dim=(1, 2)) / self.beta
