"""G(x) = concat_h [ softmax(scale q_h k_h^T + bias) v_h ] W_O: what happens between tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from odevit.field.dynamics import Observer
from odevit.registry import Registry
from odevit.tokens import Heads, Tokens

ATTENTIONS: Registry[type[Attention]] = Registry("attention")


def attend(
    q: Heads,
    k: Heads,
    v: Heads,
    *,
    scale: float,
    bias: Tensor | None = None,
    gate: Tensor | None = None,
    observer: Observer | None = None,
) -> Heads:
    """softmax(scale q k^T + bias) v.

    Fused unless someone needs the map itself: an observer, or a dropout mask that has to stay the same for the whole
    trajectory (the fused kernel would draw its own at every call).
    """
    # The ONNX decomposition of the fused kernel with a bias forgets the layout of its result; written out it exports.
    plain = bias is None or not torch.compiler.is_exporting()
    if observer is None and gate is None and plain:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)
    scores = scale * (q @ k.transpose(-2, -1))
    if bias is not None:
        scores = scores + bias
    weights = scores.softmax(dim=-1)
    if observer is not None:
        observer(weights)
    if gate is not None:
        weights = weights * gate
    return weights.to(v.dtype) @ v


class Attention(nn.Module, ABC):
    """Multi-head self-attention of `heads` heads, each `dim / heads` wide.

    A new kind is one subclass with `forward` and one line `@ATTENTIONS.register(name)`.
    """

    def __init__(self, dim: int, heads: int, bias: bool = False) -> None:
        super().__init__()
        self.dim = dim
        self.heads = heads
        self.head_dim = dim // heads

    @abstractmethod
    def forward(self, x: Tokens, gate: Tensor | None = None, observer: Observer | None = None) -> Tokens:
        """G(x); `gate` multiplies the attention weights, `observer` is handed them."""

    def split(self, x: Tokens) -> Heads:
        """[batch, token, dim] -> [batch, head, token, head_dim]."""
        return x.unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)

    def merge(self, x: Heads) -> Tokens:
        """[batch, head, token, head_dim] -> [batch, token, dim]."""
        return x.transpose(1, 2).flatten(-2)

    def gate_shape(self, x: Tokens) -> tuple[int, ...]:
        """The shape of what its dropout mask multiplies: the attention weights."""
        batch, tokens, _ = x.shape
        return batch, self.heads, tokens, tokens
