"""F(x) = W_2 s(W_1 x): what happens within each token."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from odevit.core.dynamics import AttentionHook
from odevit.core.projection import Projection
from odevit.registry import Registry
from odevit.tokens import Tokens

ACTIVATIONS: Registry[Callable[[], nn.Module]] = Registry("activation")
ACTIVATIONS.register("gelu")(nn.GELU)
ACTIVATIONS.register("gelu_tanh")(partial(nn.GELU, approximate="tanh"))
ACTIVATIONS.register("relu")(nn.ReLU)
ACTIVATIONS.register("silu")(nn.SiLU)


@ACTIVATIONS.register("quick_gelu")
class QuickGELU(nn.Module):
    """x sigmoid(1.702 x), CLIP's approximation of GELU."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


class Mlp(nn.Module):
    """F(x) = W_2 s(W_1 x + b_1) + b_2, of hidden width `ratio * dim`.

    Gated, F(x) = W_2 (s(W_g x + b_g) * (W_1 x + b_1)) + b_2; with s = SiLU that is SwiGLU (Shazeer 2020).
    """

    def __init__(self, dim: int, ratio: float, bias: bool, activation: str = "gelu", gated: bool = False) -> None:
        super().__init__()
        hidden = round(dim * ratio)
        self.up_proj = Projection(dim, hidden, bias=bias)
        self.gate_proj = Projection(dim, hidden, bias=bias) if gated else None
        self.down_proj = Projection(hidden, dim, bias=bias)
        self.activation = ACTIVATIONS[activation]()

    def forward(self, x: Tokens, gate: Tensor | None = None, observer: AttentionHook | None = None) -> Tokens:
        hidden = self.up_proj(x)
        hidden = self.activation(hidden) if self.gate_proj is None else self.activation(self.gate_proj(x)) * hidden
        if gate is not None:
            hidden = hidden * gate
        return self.down_proj(hidden)

    def gate_shape(self, x: Tokens) -> tuple[int, ...]:
        """The shape of what its dropout mask multiplies: the hidden units."""
        batch, tokens, _ = x.shape
        return batch, tokens, self.up_proj.out_features
