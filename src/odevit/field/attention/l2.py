"""softmax(-|q_i - q_j|^2 / sqrt(d)): attention by distance, Lipschitz by construction."""

from __future__ import annotations

from torch import Tensor

from odevit.field.attention.multi_head import ATTENTIONS, Attention, attend
from odevit.field.dynamics import Observer
from odevit.field.projection import Projection
from odevit.tokens import Tokens


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
