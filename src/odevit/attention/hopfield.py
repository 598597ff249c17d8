"""q' = softmax(beta q k^T) k: attention as the retrieval of a Hopfield network, a gradient step on an energy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from odevit.core.attention import ATTENTIONS, Attention, attend
from odevit.core.base import AttentionHook
from odevit.core.layers import Projection, matrix_of
from odevit.errors import BOOLEAN, integer, real
from odevit.tokens import AttentionMap, Heads, Tokens


@ATTENTIONS.register("hopfield")
class HopfieldAttention(Attention):
    """G(x_i) = sum_h W_Q^hT softmax(beta q_i^h k_h^T) k_h = -dE/dx_i, beta = 1/sqrt(d) unless given.

    The association of modern Hopfield networks (Ramsauer et al. 2020): keys are stored patterns and values, and the
    output is multiplied by W_Q^T. It is the gradient of `energy` for constant stored patterns, with two matrices
    instead of four. The quadratic part of the Hopfield energy is the field's leak.

    In the survey, a layer is one retrieval step that moves queries towards minima of an energy. Here one evaluation can
    make several retrieval steps, and the result is a velocity of the tokens, not their next value.

    Args:
        updates: the number of retrievals q <- softmax(beta q k^T) k in an evaluation, none of which increases
            `memory_energy`. With one, the velocity is the gradient.
        beta: the inverse temperature: a small one averages all patterns, a large one retrieves a single one.
        flow: adds sum_h W_K^hT P_h^T q_h, the gradient with respect to the stored patterns. Tokens that are queries and
            patterns then move down `energy(x, x)`, as in an Energy Transformer (Hoover et al. 2023).
    """

    rules = {  # noqa: RUF012 (a mapping of the class)
        "updates": integer(1, 1000),
        "beta": real(above=0, optional=True),
        "flow": BOOLEAN,
    }

    def __init__(
        self,
        dim: int,
        heads: int,
        bias: bool = False,
        *,
        updates: int = 1,
        beta: float | None = None,
        flow: bool = False,
    ) -> None:
        super().__init__(dim, heads, bias)
        self.q_proj = Projection(dim, dim, bias=False)
        self.k_proj = Projection(dim, dim, bias=False)
        self.updates, self.flow = updates, flow
        self.supports_token_mask = not flow  # with a flow, the output of a key depends on all queries
        self.beta = self.head_dim**-0.5 if beta is None else beta

    def forward(
        self, x: Tokens, mask: Tensor | None = None, hook: AttentionHook | None = None, stored: Tokens | None = None
    ) -> Tokens:
        q, k = self.split(self.q_proj(x)), self.split(self.k_proj(x if stored is None else stored))
        for _ in range(self.updates - 1):
            # A hook also turns off the fused kernel, which has no forward-mode derivatives.
            q = attend(q, k, k, scale=self.beta, mask=mask, fused=self.fused and hook is None)
        if not self.flow:
            mixed = attend(q, k, k, scale=self.beta, mask=mask, hook=hook, fused=self.fused)
            return self.merge(mixed) @ matrix_of(self.q_proj, x)
        maps: list[AttentionMap] = []
        mixed = attend(q, k, k, scale=self.beta, mask=mask, hook=maps.append)
        if hook is not None:
            hook(maps[0])
        weights = maps[0] if mask is None else maps[0] * mask
        key_gradient = weights.transpose(-2, -1).to(q.dtype) @ q
        return self.merge(mixed) @ matrix_of(self.q_proj, x) + self.merge(key_gradient) @ matrix_of(self.k_proj, x)

    def energy(self, x: Tokens, stored: Tokens) -> Tensor:
        """E(x) = -1/beta sum_h sum_i logsumexp_j(beta q_i^h . k_j^h), per sample."""
        q, k = self.split(self.q_proj(x)), self.split(self.k_proj(stored))
        return (memory_energy(q, k, self.beta) - q.square().sum(dim=-1) / 2).sum(dim=(1, 2))

    @classmethod
    def option_problems(cls, options: Mapping[str, Any]) -> list[str]:
        problems = super().option_problems(options)
        if options.get("flow") and options.get("updates", 1) != 1:
            problems.append(
                f"attention_options.flow=True and updates={options['updates']}: the velocity is a gradient for one "
                "update only; leave one out"
            )
        return problems


def memory_energy(q: Heads, k: Heads, beta: float) -> Tensor:
    """E(q) = |q|^2 / 2 - 1/beta logsumexp_j(beta q . k_j), of queries; q <- softmax(beta q k^T) k does not raise it.

    The update minimises an upper bound of E that equals E at q, because logsumexp is convex (the concave-convex
    procedure).
    """
    scores = beta * (q @ k.transpose(-2, -1))
    return q.square().sum(dim=-1) / 2 - torch.logsumexp(scores, dim=-1) / beta
