"""G(x) = concat_h [ softmax(scale q_h k_h^T + bias) v_h ] W_O: the mixing of tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from odevit.core.base import AttentionHook
from odevit.core.layers import NORMS, Projection
from odevit.errors import Expected, option_problems
from odevit.registry import Registry
from odevit.tokens import Heads, Tokens

ATTENTIONS: Registry[type[Attention]] = Registry("attention")

Rotation = tuple[Tensor, Tensor]
"""cos and sin of every token's angles, [token, head_dim]."""


def attend(
    q: Heads,
    k: Heads,
    v: Heads,
    *,
    scale: float,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    hook: AttentionHook | None = None,
    fused: bool = True,
) -> Heads:
    """softmax(scale q k^T + bias) v, the weights multiplied by `mask`; a mask of booleans marks the keys to use.

    Fused if possible. A hook needs the map itself, and so does a dropout mask that is the same for a whole trajectory:
    the fused kernel would draw another one at every call.
    """
    if mask is not None and mask.dtype == torch.bool:
        # Before the softmax, so that the weights of the remaining keys sum to one.
        absent = torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, -torch.inf)
        bias, mask = absent if bias is None else bias + absent, None
    # ONNX's decomposition of the fused kernel with a bias loses the layout of its result; the plain form exports.
    plain = fused and (bias is None or not torch.compiler.is_exporting())
    if hook is None and mask is None and plain:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)
    scores = scale * (q @ k.transpose(-2, -1))
    if bias is not None:
        scores = scores + bias
    weights = scores.softmax(dim=-1)
    if hook is not None:
        hook(weights)
    if mask is not None:
        weights = weights * mask
    return weights.to(v.dtype) @ v


class Attention(nn.Module, ABC):
    """Multi-head self-attention of `heads` heads, each `dim / heads` wide.

    A new kind is one subclass with `forward` and `@ATTENTIONS.register(name)`. Its own options are further keyword
    arguments with defaults and `rules`; a configuration keeps them in `attention_options`.
    """

    fused: bool = True
    """Whether the fused kernel may be used; the plain form has derivatives of every order and in forward mode."""
    rules: ClassVar[Mapping[str, Expected]] = {}
    """Its options, and what each should be."""
    supports_rotary: ClassVar[bool] = False
    """Whether it takes `qk_norm` and `rotary`."""
    supports_token_mask: bool = False
    """Whether a mask of booleans removes tokens completely: the result for the others does not depend on them."""

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
    def forward(self, x: Tokens, mask: Tensor | None = None, hook: AttentionHook | None = None) -> Tokens:
        """G(x); `mask` multiplies the attention weights and `hook` is called with them, see `attend`."""

    def rotation(self, x: Tokens) -> Rotation | None:
        """The rotation of such tokens, which `forward` takes as its fourth argument; None without rotary positions."""
        return None

    def split(self, x: Tokens) -> Heads:
        """[batch, token, dim] -> [batch, head, token, head_dim]."""
        return x.unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)

    def merge(self, x: Heads) -> Tokens:
        """[batch, head, token, head_dim] -> [batch, token, dim]."""
        return x.transpose(1, 2).flatten(-2)

    def mask_shape(self, x: Tokens) -> tuple[int, ...]:
        """The shape of its dropout mask: the attention weights."""
        batch, tokens, _ = x.shape
        return batch, self.heads, tokens, tokens


@ATTENTIONS.register("dot")
class DotProductAttention(Attention):
    """G(x) = concat_h [ softmax(q_h k_h^T / sqrt(d)) v_h ] W_O: the attention of the Transformer and the paper (eq. 4).

    Not Lipschitz on unbounded sets (Kim et al. 2021): a norm before it bounds the tokens and with them the constant.

    Args:
        qk_norm: name of a norm of every head's queries and keys, after ViT-22B (Dehghani et al. 2023).
        rotary: positions as rotations of queries and keys, see `odevit.attention.rotary`.
    """

    supports_rotary = True
    supports_token_mask = True

    def __init__(
        self, dim: int, heads: int, bias: bool = False, *, qk_norm: str | None = None, rotary: Any = None
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

    def projected(self, x: Tokens, rotation: Rotation | None) -> tuple[Heads, Heads, Heads]:
        """q, k and v; q and k are normed and rotated if the module does so."""
        q, k, v = self.split(self.q_proj(x)), self.split(self.k_proj(x)), self.split(self.v_proj(x))
        if self.q_norm is not None and self.k_norm is not None:
            # Under autocast a norm returns single precision, and v is in half precision.
            q, k = self.q_norm(q).to(v.dtype), self.k_norm(k).to(v.dtype)
        if self.rotary is None:
            return q, k, v
        rotation = self.rotary.rotation(x.shape[1], self.head_dim, x.device) if rotation is None else rotation
        return self.rotary.rotate(q, rotation), self.rotary.rotate(k, rotation), v

    def forward(
        self,
        x: Tokens,
        mask: Tensor | None = None,
        hook: AttentionHook | None = None,
        rotation: Rotation | None = None,
    ) -> Tokens:
        q, k, v = self.projected(x, rotation)
        mixed = attend(q, k, v, scale=self.head_dim**-0.5, mask=mask, hook=hook, fused=self.fused)
        return self.o_proj(self.merge(mixed))
