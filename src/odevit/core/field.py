"""dx/dt = G(x) + F(x) - leak (x - x0): attention and MLP as one shared vector field (eq. 3)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from odevit.core.attention import ATTENTIONS, Attention, Rotation
from odevit.core.base import AttentionHook, Dynamics, Field
from odevit.core.layers import NORMS, TIME_INPUTS, Mlp
from odevit.tokens import AttentionMap, Tokens, gather_tokens

TIME_ADDED = "add"
Masks = tuple[Tensor | Rotation | None, ...]
"""What a branch is given at every evaluation of one trajectory: its masks and its rotary positions."""


class VectorField(Field):
    """dx/dt = G(n_1(x)) + F(n_2(x)) - leak (x - x0).

    G is attention, F an MLP, n_1 and n_2 norms. The weights do not depend on t: the field is autonomous unless it is
    `time_conditioned`. With leak > 0 and a norm that bounds the forcing, every trajectory stays within
    |forcing| / leak of its image x0 and can come to rest.

    Args:
        dim: width of the tokens.
        heads: number of attention heads; divides `dim`.
        mlp_ratio: hidden width of F over `dim`.
        attention: name of G, see `ATTENTIONS`.
        attention_options: options of that kind of G, by name.
        norm: name of the norms, see `NORMS`.
        leak: pull towards the start of the trajectory.
        fade: how the velocity falls to 0 after the horizon, see `odevit.time_varying.fade`; None leaves it on.
        bias: whether projections have one.
        activation: s in F, see `ACTIVATIONS`.
        gated: whether a second projection gates the hidden units of F.
        qk_norm: whether queries and keys pass a norm of the kind `norm`, head by head.
        rotary: positions as rotations of queries and keys; like `qk_norm` for attention by dot product or angle.
        residual_scale: start value of a learned per-channel factor on each component; None leaves it out.
        time_conditioned: whether the norms are scaled and shifted by functions of t; "add": the input is x + t e.
        attention_dropout, dropout, output_dropout, drop_path: probabilities of the attention weights, the hidden units
            of F, the outputs of both components, a whole component; each draws one mask per trajectory.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        mlp_ratio: float = 4.0,
        *,
        attention: str = "dot",
        attention_options: Mapping[str, Any] | None = None,
        norm: str = "layer",
        leak: float = 0.0,
        fade: Any = None,
        bias: bool = False,
        activation: str = "gelu",
        gated: bool = False,
        qk_norm: bool = False,
        rotary: Any = None,
        residual_scale: float | None = None,
        time_conditioned: bool | str = False,
        attention_dropout: float = 0.0,
        dropout: float = 0.0,
        output_dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.dim, self.leak, self.fade = dim, leak, fade
        if time_conditioned:
            self.autonomous_from = math.inf
        elif fade is not None:
            self.autonomous_from = fade.end

        shared: Any = {"residual_scale": residual_scale, "time_conditioned": time_conditioned}
        shared |= {"output_dropout": output_dropout, "drop_path": drop_path}
        # Only what is asked for: a kind of attention need not have these arguments.
        options: Any = ({"qk_norm": norm} if qk_norm else {}) | ({} if rotary is None else {"rotary": rotary})
        options |= attention_options or {}
        mixer = ATTENTIONS[attention](dim, heads, bias, **options)
        mixing = Branch(dim, mixer, norm, dropout=attention_dropout, **shared)
        mlp = Branch(dim, Mlp(dim, mlp_ratio, bias, activation, gated), norm, dropout=dropout, **shared)
        self.components = nn.ModuleDict({"attention": mixing, "mlp": mlp})

    @property
    def attention(self) -> Attention:
        """G, without its norm."""
        return cast(Attention, cast(Branch, self.components["attention"]).body)

    def branches(self) -> Iterable[tuple[str, Branch]]:
        """The components by name, in their order."""
        return cast("Iterable[tuple[str, Branch]]", self.components.items())

    @property
    def supports_token_mask(self) -> bool:
        """Whether tokens can be masked out; dropout of attention weights takes the place of the token mask."""
        dropped = self.training and cast(Branch, self.components["attention"]).dropout > 0.0
        return self.attention.supports_token_mask and not dropped

    def dynamics(self, x0: Tokens, token_indices: Tensor | None = None, token_mask: Tensor | None = None) -> Dynamics:
        """The equation of the trajectory that starts at `x0`, with its dropout masks drawn.

        `token_indices` [batch, k] makes it the equation of these tokens alone, with the positions that they have among
        all. Tokens with `token_mask` [batch, k] False only fill up the batch: they change no other token.
        """
        anchor = x0 if token_indices is None else gather_tokens(x0, token_indices)
        components = {}
        for name, module in self.components.items():
            branch = cast(Branch, module)
            masks = branch.draw_masks(anchor, x0, token_indices, token_mask)
            components[name] = partial(_with_masks, branch, masks) if masks else branch
        dynamics = Dynamics(components, anchor=anchor, leak=self.leak)
        return dynamics if self.fade is None else self.fade(dynamics)

    def at(self, t: float) -> VectorField:
        return self

    def describe(self, state: str = "x") -> str:
        formula = f"dx/dt = G({state}) + F({state})" + (f" - {self.leak:g} (x - x0)" if self.leak else "")
        return formula if self.fade is None else f"{formula}, {self.fade}"


class Branch(nn.Module):
    """v = alpha * mask * f(n(x)), f attention or an MLP, with an optional time modulation of n(x).

    `dropout` is the probability of the mask inside f, `output_dropout` that of the mask on its output, `drop_path` that
    of leaving this component out of a sample's trajectory; the other arguments are those of `VectorField`.
    """

    compiled: Callable[..., tuple[Tokens, list[AttentionMap]]] | None = None
    """The compiled `_with_maps`; it takes the branch as its first argument."""

    def __init__(
        self,
        dim: int,
        body: Attention | Mlp,
        norm: str,
        *,
        residual_scale: float | None,
        time_conditioned: bool | str,
        dropout: float,
        output_dropout: float,
        drop_path: float,
    ) -> None:
        super().__init__()
        self.norm = NORMS[norm](dim)
        self.body = body
        added = time_conditioned == TIME_ADDED
        self.time_added = TIME_INPUTS["add"](dim) if added else None
        self.time = TIME_INPUTS["modulate"](dim) if time_conditioned and not added else None
        scale = None if residual_scale is None else torch.full((dim,), float(residual_scale))
        self.residual_scale = None if scale is None else nn.Parameter(scale)
        self.dropout = dropout
        self.output_dropout = output_dropout
        self.drop_path = drop_path

    def forward(
        self,
        x: Tokens,
        t: float,
        hook: AttentionHook | None = None,
        mask: Tensor | None = None,
        output_mask: Tensor | None = None,
        rotation: Rotation | None = None,
    ) -> Tokens:
        y = self.norm(x if self.time_added is None else self.time_added(x, t))
        if self.time is not None:
            y = self.time(y, t)
        velocity = self.body(y, mask, hook, *(() if rotation is None else (rotation,)))
        if self.residual_scale is not None:
            velocity = self.residual_scale * velocity
        if output_mask is not None:
            velocity = velocity * output_mask
        return velocity

    @property
    def draws(self) -> bool:
        """Whether a trajectory has random masks of its own."""
        return self.training and not self.dropout == self.output_dropout == self.drop_path == 0.0

    def compile(self, **options: Any) -> None:
        """Compile `forward` as a function of the branch: copies of it with other weights run what was compiled."""
        self.compiled = torch.compile(type(self)._with_maps, **options)

    def _with_maps(self, x: Tokens, t: float, wanted: bool, *masks: Any) -> tuple[Tokens, list[AttentionMap]]:
        """`forward` and, if wanted, its attention maps: a hook could not be compiled."""
        maps: list[AttentionMap] = []
        return self.forward(x, t, maps.append if wanted else None, *masks), maps

    def __call__(self, x: Tokens, t: float, hook: AttentionHook | None = None, *masks: Any) -> Tokens:
        if self.compiled is None:
            # With weights on several devices, the state stays on its own.
            return super().__call__(x, t, hook, *masks).to(x.device)
        velocity, maps = self.compiled(self, x, t, hook is not None, *masks)
        for weights in maps:
            cast(AttentionHook, hook)(weights)
        return velocity

    def draw_masks(
        self, anchor: Tokens, x0: Tokens, token_indices: Tensor | None = None, token_mask: Tensor | None = None
    ) -> Masks:
        """The masks of one trajectory, inside f and of its output, and its positions; () if there are none.

        Redrawn at every evaluation, they would make the field another function at every stage of a step, and there
        would be no equation to solve. `anchor` are the tokens of the trajectory, those at `token_indices` of `x0`.
        """
        keys = rotation = None
        if isinstance(self.body, Attention):
            keys = None if token_mask is None else token_mask[:, None, None]
            rotation = self.body.rotation(x0)
        if rotation is not None and token_indices is not None:
            # [token, channel] -> [batch, 1, k, channel]: each sample keeps other tokens, the same for all heads.
            rotation = rotation[0][token_indices].unsqueeze(1), rotation[1][token_indices].unsqueeze(1)
        if self.training and (self.dropout or self.output_dropout or self.drop_path):
            mask = draw_mask(self.dropout, self.body.mask_shape(anchor), anchor) if keys is None else keys
            path = draw_mask(self.drop_path, (len(anchor), 1, 1), anchor)
            output = draw_mask(self.output_dropout, anchor.shape, anchor)
            return mask, output if path is None else path if output is None else path * output, rotation
        return () if rotation is None and keys is None else (keys, None, rotation)


def _with_masks(branch: Branch, masks: Masks, x: Tokens, t: float, hook: AttentionHook | None) -> Tokens:
    """The component of a trajectory that has these masks."""
    return branch(x, t, hook, *masks)


def draw_mask(probability: float, shape: tuple[int, ...], like: Tensor) -> Tensor | None:
    """A mask of 0 and 1/(1 - p), or None when nothing is dropped."""
    if probability == 0.0:
        return None
    keep = torch.rand(shape, device=like.device) >= probability
    return keep.to(like.dtype) / (1.0 - probability)
