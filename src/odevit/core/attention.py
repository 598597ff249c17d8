"""G(x) = concat_h [ softmax(scale q_h k_h^T + bias) v_h ] W_O: what happens between tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from odevit.attention.rotary import Rotation
from odevit.core.dynamics import AttentionHook
from odevit.errors import Expected, option_problems
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
    observer: AttentionHook | None = None,
    fused: bool = True,
) -> Heads:
    """softmax(scale q k^T + bias) v, the weights multiplied by `gate`; a gate of booleans says which keys are there.

    Fused if that is wanted, unless someone needs the map itself: an observer, or a dropout mask that has to stay the
    same for the whole trajectory (the fused kernel would draw its own at every call).
    """
    if gate is not None and gate.dtype == torch.bool:
        # Before the softmax: the weights of those who are there sum to one.
        absent = torch.zeros_like(gate, dtype=q.dtype).masked_fill(~gate, -torch.inf)
        bias, gate = absent if bias is None else bias + absent, None
    # The ONNX decomposition of the fused kernel with a bias forgets the layout of its result; written out it exports.
    plain = fused and (bias is None or not torch.compiler.is_exporting())
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

    A new kind is one subclass with `forward` and one line `@ATTENTIONS.register(name)`. What only it knows are further
    keyword arguments, with defaults and with `rules`; a configuration keeps those given under `attention_options`.
    """

    fused: bool = True
    """Whether the fused kernel may be used; written out, attention has derivatives of every order and direction."""
    rules: ClassVar[Mapping[str, Expected]] = {}
    """Its options, and what each should be."""
    can_turn: ClassVar[bool] = False
    """Whether it takes `qk_norm` and `rotary`: its queries and keys can be normed and turned."""
    can_hide: bool = False
    """Whether a gate of booleans hides tokens, as `attend` does: what the others get must not depend on them."""

    def __init__(self, dim: int, heads: int, bias: bool = False) -> None:
        super().__init__()
        self.dim = dim
        self.heads = heads
        self.head_dim = dim // heads

    @classmethod
    def option_problems(cls, options: Mapping[str, Any]) -> list[str]:
        """What is wrong with its options, as sentences; a subclass adds what is wrong with several together."""
        return option_problems("attention_options", options, cls.rules, "this attention")

    @abstractmethod
    def forward(self, x: Tokens, gate: Tensor | None = None, observer: AttentionHook | None = None) -> Tokens:
        """G(x); `gate` multiplies the attention weights, see `attend`, `observer` is handed them."""

    def rotation(self, x: Tokens) -> Rotation | None:
        """What a trajectory of such tokens is to hand to `forward` as its fourth argument; None leaves it out."""
        return None

    def attend(self, q: Heads, k: Heads, v: Heads, **options: Any) -> Heads:
        """softmax(scale q k^T + bias) v, fused if this module may; the options are those of the function."""
        return attend(q, k, v, fused=self.fused, **options)

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
