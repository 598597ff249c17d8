"""-dE/dx of a Hopfield energy: attention that goes downhill."""

from __future__ import annotations

import torch
from torch import Tensor

from odevit.field.attention.multi_head import ATTENTIONS, Attention, attend
from odevit.field.dynamics import Observer
from odevit.field.projection import Projection
from odevit.tokens import Tokens


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
