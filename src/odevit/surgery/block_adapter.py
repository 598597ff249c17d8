"""block -> settings and weights of a field: the parts of blocks of transformers, timm and odevit, by their names."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from odevit.core.attention import ATTENTIONS
from odevit.core.field import VectorField
from odevit.core.layers import ACTIVATIONS, NORMS, CenterNorm

# Part of a block -> its names in transformers, timm and odevit, and its name in a field.
PARTS = {
    "norm1": (r"^(norm1|layernorm_before|layer_norm1|rms_norm1|components\.attention\.norm)$", "attention.norm"),
    "qkv": (r"\bqkv$", ""),
    "q_proj": (r"\b(q_proj|query)$", "attention.body.q_proj"),
    "k_proj": (r"\b(k_proj|key)$", "attention.body.k_proj"),
    "v_proj": (r"\b(v_proj|value)$", "attention.body.v_proj"),
    "o_proj": (r"\b(o_proj|out_proj|attn\.proj|attention\.output\.dense)$", "attention.body.o_proj"),
    "q_norm": (r"\bq_norm$", "attention.body.q_norm"),
    "k_norm": (r"\bk_norm$", "attention.body.k_norm"),
    "scale1": (r"^(layer_scale1|ls1|components\.attention)$", "attention"),
    "norm2": (r"^(norm2|layernorm_after|layer_norm2|rms_norm2|components\.mlp\.norm)$", "mlp.norm"),
    "up_proj": (r"\b(fc1|fc1_x|up_proj|intermediate\.dense)$", "mlp.body.up_proj"),
    "gate_proj": (r"\b(gate_proj|fc1_g)$", "mlp.body.gate_proj"),
    "down_proj": (r"\b(fc2|down_proj)$|^output\.dense$", "mlp.body.down_proj"),
    "scale2": (r"^(layer_scale2|ls2|components\.mlp)$", "mlp"),
}
SCALES = ("lambda1", "gamma", "residual_scale")
"""Names of a factor on each channel."""
LAST = {"scale1": "o_proj", "scale2": "down_proj"}
"""Factor on a component -> the projection before it, into which it can be multiplied."""
ACTIVATION = re.compile(r"(^|[._])act(ivation)?(_fn)?$")
OTHER_ORDERS = re.compile(r"post|parallel", re.IGNORECASE)


@ACTIVATIONS.register("quick_gelu")
class QuickGELU(nn.Module):
    """x sigmoid(1.702 x), CLIP's approximation of GELU."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


@dataclass(frozen=True)
class BlockSpec:
    """The parts of a block as arguments of `VectorField`; None for what was not found.

    `lacking` are sentences about parts that no field has, which a copy omits; `strange` about blocks that no field can
    copy.
    """

    attention: str
    norm: str | None
    activation: str | None
    gated: bool
    qk_norm: bool
    mlp_ratio: float | None
    bias: bool
    lacking: tuple[str, ...]
    strange: tuple[str, ...]


def block_spec(block: nn.Module) -> BlockSpec:
    """The settings of a block, from the names of its parts and, for its activation, from its values."""
    parts = {name: part_of(name) for name, _ in block.named_parameters()}
    owners = {name.rpartition(".")[0] for name, part in parts.items() if part is not None and "norm" in part}
    norms = sorted({_norm_kind(block.get_submodule(owner)) for owner in owners})
    up = next((value for name, value in block.named_parameters() if parts[name] == "up_proj" and value.ndim == 2), None)
    activation, tried = _activation(block)
    unknown = [name for name, part in parts.items() if part is None]
    lacking, strange = [], []
    if OTHER_ORDERS.search(type(block).__name__):
        strange.append(f"the teacher's {type(block).__name__} does not compute x + G(n(x)), then x + F(n(x))")
    if len(norms) != 1 or norms[0] not in NORMS:
        found = ", ".join(norms) or "none that could be found"
        strange.append(f"the norms of the teacher's blocks are {found}; a field has {' or '.join(sorted(NORMS))}")
    if tried and activation is None:
        lacking.append(f"the activation {tried} of the teacher's blocks is none of {', '.join(sorted(ACTIVATIONS))}")
    if unknown:
        lacking.append(f"the teacher's blocks have parts that a field has not: {', '.join(unknown[:8])}")
    return BlockSpec(
        attention=ATTENTIONS.name_of(type(block.attention)) if isinstance(block, VectorField) else "dot",
        norm=norms[0] if len(norms) == 1 and norms[0] in NORMS else None,
        activation=activation,
        gated="gate_proj" in parts.values(),
        qk_norm="q_norm" in parts.values(),
        mlp_ratio=None if up is None else up.shape[0] / up.shape[1],
        bias=any(name.endswith("bias") and part is not None and "norm" not in part for name, part in parts.items()),
        lacking=tuple(lacking),
        strange=tuple(strange),
    )


def weights_of(block: nn.Module, scaled: bool) -> dict[str, Tensor]:
    """The weights of a block under the names of a field, in single precision.

    A layer scale becomes the field's `residual_scale` if it has one (`scaled`), and is otherwise multiplied into the
    last projection of its component. Parts that no field has are omitted.
    """
    parts: dict[str, Tensor] = {}  # "q_proj.weight", "norm1.bias", ...; a fused qkv is split
    scales: dict[str, Tensor] = {}
    for name, parameter in block.named_parameters():
        part, leaf, value = part_of(name), name.rpartition(".")[2], parameter.detach().float()
        if part in LAST:
            scales[part] = value
        elif part == "qkv":
            parts |= {f"{letter}_proj.{leaf}": piece for letter, piece in zip("qkv", value.chunk(3), strict=True)}
        elif part is not None:
            parts[f"{part}.{leaf}"] = value
    for scale, last in LAST.items():
        factor = scales.get(scale)
        if scaled:
            if factor is None and (width := _width(block)):
                factor = torch.ones(width)
            parts |= {} if factor is None else {f"{scale}.residual_scale": factor}
        elif factor is not None and f"{last}.weight" in parts:
            _fold(parts, last, factor)
        elif factor is not None:  # there is no such matrix, as in Hopfield's attention
            parts[f"{scale}.residual_scale"] = factor
    named = (name.partition(".") for name in parts)
    return {
        f"components.{PARTS[part][1]}.{leaf}": value
        for (part, _, leaf), value in zip(named, parts.values(), strict=True)
    }


def _width(block: nn.Module) -> int | None:
    """D, the number of input channels of the first known matrix; None if there is none."""
    matrices = (weight for name, weight in block.named_parameters() if part_of(name) and weight.ndim == 2)
    return next((weight.shape[1] for weight in matrices), None)


def part_of(name: str) -> str | None:
    """The part of a block to which the parameter of this name belongs."""
    owner, _, leaf = name.rpartition(".")
    for part, (pattern, _) in PARTS.items():
        if leaf in (SCALES if part in LAST else ("weight", "bias")) and re.search(pattern, owner):
            return part
    return None


def _fold(parts: dict[str, Tensor], last: str, factor: Tensor) -> None:
    """diag(factor) (W x + b), written into W and b."""
    for leaf in ("weight", "bias"):
        if (value := parts.get(f"{last}.{leaf}")) is not None:
            parts[f"{last}.{leaf}"] = factor.unflatten(0, (-1, *(1,) * (value.ndim - 1))) * value


def _activation(block: nn.Module) -> tuple[str | None, str]:
    """The name of a block's activation, found by its values, and its class; no class if there is no activation."""
    probe = torch.linspace(-4.0, 4.0, 33)
    for name, module in block.named_modules():
        if isinstance(module, nn.GELU | nn.ReLU | nn.SiLU) or ACTIVATION.search(name):
            try:
                values = module(probe)
            except (RuntimeError, TypeError):  # it does not act element by element, such as GLU
                return None, type(module).__name__
            same = (key for key, make in ACTIVATIONS.items() if torch.allclose(make()(probe), values, atol=1e-5))
            return next(same, None), type(module).__name__
    return None, ""


def _norm_kind(norm: nn.Module) -> str:
    if isinstance(norm, nn.LayerNorm):
        return "layer"
    if isinstance(norm, CenterNorm):
        return "center"
    return "rms" if "rms" in type(norm).__name__.lower() else type(norm).__name__
