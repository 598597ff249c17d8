"""blocks -> dx/dt = f(x): a pretrained ViT becomes a student whose depth is an equation.

Its field may begin as the mean of the teacher's blocks, W = (1/L) sum_l W_l.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from odevit.errors import ConfigError
from odevit.field import CenterNorm, Projection, VectorField, spectral_
from odevit.model.anatomy import Anatomy, examine
from odevit.model.configuration_student import OdeStudentConfig
from odevit.model.encoder import BlockBridge, DepthBridge
from odevit.model.modeling_student import OdeStudent
from odevit.model.origin import describe
from odevit.model.processor import read_processor, statistics_of

# What a part of a block is called in Hugging Face's models, in timm's and in ours, and where the field has it.
PARTS = {
    "norm1": (r"^(norm1|layernorm_before|layer_norm1|components\.attention\.norm)$", "components.attention.norm"),
    "qkv": (r"\bqkv$", ""),
    "q_proj": (r"\b(q_proj|query)$", "components.attention.body.q_proj"),
    "k_proj": (r"\b(k_proj|key)$", "components.attention.body.k_proj"),
    "v_proj": (r"\b(v_proj|value)$", "components.attention.body.v_proj"),
    "o_proj": (r"\b(o_proj|out_proj|attn\.proj|attention\.output\.dense)$", "components.attention.body.o_proj"),
    "scale1": (r"^(layer_scale1|ls1|components\.attention)$", "components.attention"),
    "norm2": (r"^(norm2|layernorm_after|layer_norm2|components\.mlp\.norm)$", "components.mlp.norm"),
    "up_proj": (r"\b(fc1|up_proj|intermediate\.dense)$", "components.mlp.body.up_proj"),
    "down_proj": (r"\b(fc2|down_proj)$|^output\.dense$", "components.mlp.body.down_proj"),
    "scale2": (r"^(layer_scale2|ls2|components\.mlp)$", "components.mlp"),
}
SCALES = ("lambda1", "gamma", "residual_scale")
OTHER_ORDERS = re.compile(r"post|parallel", re.IGNORECASE)


def get_ode_model(
    vit: nn.Module, config: OdeStudentConfig | None = None, *, anatomy: Anatomy | None = None, **overrides: Any
) -> OdeStudent:
    """A student of `vit`: a copy of it whose list of blocks is one vector field and its integration.

    The given model stays as it was, and nothing is shared with it. In the copy everything but the equation is frozen.

    Args:
        vit: a Vision Transformer of transformers (ViT, DINO, DeiT, DINOv2, DINOv3, CLIP's and SigLIP's vision
            models), of timm, or our own with depth="stacked". Others work when their blocks can be found.
        config: the equation; the defaults are one Lie-Trotter step of length 1 for each of twelve blocks.
        anatomy: of `vit`, when it was examined already.
        overrides: values that replace parts of `config`.
    """
    if isinstance(vit, OdeStudent) or any(isinstance(part, BlockBridge | DepthBridge) for part in vit.modules()):
        raise ValueError(
            f"this {type(vit).__name__} was operated on already: its depth is an equation. "
            "Call .unload() on the student and pass what it gives"
        )
    config = (config or OdeStudentConfig()).changed(**overrides)
    model = copy.deepcopy(vit).eval().requires_grad_(False)
    anatomy = examine(model) if anatomy is None else anatomy
    blocks = anatomy.where.blocks(model)
    base, base_config = describe(model)
    processor = read_processor(str(getattr(vit, "name_or_path", "")))
    config = config.completed(model, anatomy, base, base_config, statistics_of(processor, model))

    student = OdeStudent(config, model)
    if config.init == "average":
        initialise_average(student.field, blocks, config, anatomy.width, anatomy.heads)
    else:
        initialise_spectral(student.field)
    # The precision stays float32 whatever the frozen parts have: only the equation is trained.
    student.encoder.to(next(blocks[0].parameters()).device)
    student.remember(vit, processor)
    return student.train(vit.training)


def initialise_spectral(field: VectorField) -> None:
    """Every projection with spectral norm 1, every bias 0."""
    for module in field.modules():
        if isinstance(module, Projection):
            spectral_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


@torch.no_grad()
def initialise_average(
    field: VectorField, blocks: Sequence[nn.Module], config: OdeStudentConfig, width: int, heads: int | None
) -> None:
    """Every weight of the field = the mean over the blocks of the corresponding weight.

    A layer scale of the teacher becomes the field's `residual_scale` when it has one, and is multiplied into the last
    projection of its component otherwise. Biases that the teacher lacks are 0. The activation is the field's own
    (exact GELU), and rotary positions are not part of a field: there the mean is a start, not the teacher's block.

    Raises:
        ConfigError: with everything that differs.
    """
    problems = _differences(config, blocks[0], width, heads)
    if not problems:
        weights = [_weights(block, config) for block in blocks]
        target = dict(field.named_parameters())
        mean = {name: torch.stack([block[name].float() for block in weights]).mean(0) for name in weights[0]}
        problems = [
            f"{name} has the shape {tuple(value.shape)} in the teacher and {tuple(target[name].shape)} in the field"
            + (f"; pass mlp_ratio={value.shape[0] / width:g}" if name.endswith("up_proj.weight") else "")
            for name, value in mean.items()
            if name in target and value.shape != target[name].shape
        ]
        without = sorted(name for name in mean if name not in target)
        if without:
            problems.append(f"the field has no {', '.join(without)}, the teacher has; pass bias={not config.bias}")
    if problems:
        raise ConfigError("init='average'", [*problems, "or pass init='spectral', which needs nothing of the teacher"])
    for name, value in mean.items():
        target[name].copy_(value)
    for name, parameter in target.items():
        if name not in mean and name.endswith(".bias") and ".body." in name:
            parameter.zero_()


def _differences(config: OdeStudentConfig, block: nn.Module, width: int, heads: int | None) -> list[str]:
    """What makes the mean of such blocks no such field, as sentences."""
    parts = {name: _part(name) for name, _ in block.named_parameters()}
    norms = [name.rpartition(".")[0] for name, part in parts.items() if part in ("norm1", "norm2")]
    kinds = {_norm_kind(block.get_submodule(norm)) for norm in norms}
    unknown = [name for name, part in parts.items() if part is None]
    have = {*parts.values(), *(("q_proj", "k_proj", "v_proj") if "qkv" in parts.values() else ())}
    missing = [part for part in PARTS if part not in have and part not in ("qkv", "scale1", "scale2")]
    problems = []
    if config.hidden_size != width:
        problems.append(f"hidden_size={config.hidden_size}, the teacher's is {width}; leave it out")
    if config.num_attention_heads != heads:
        problems.append(f"num_attention_heads={config.num_attention_heads}, the teacher's is {heads}; leave it out")
    if config.attention != "dot":
        problems.append(f"attention={config.attention!r}, the teacher's is 'dot'; pass attention='dot'")
    if kinds != {config.norm}:
        teachers = ", ".join(sorted(repr(kind) for kind in kinds)) or "not to be found"
        problems.append(f"norm={config.norm!r}, the teacher's is {teachers}")
    if OTHER_ORDERS.search(type(block).__name__):
        problems.append(f"the teacher's {type(block).__name__} does not compute x + G(n(x)), then x + F(n(x))")
    if unknown:
        problems.append(f"the teacher's blocks have parts that a field has not: {', '.join(unknown[:8])}")
    if missing:
        problems.append(f"the teacher's blocks have no {', '.join(missing)}")
    return problems


def _part(name: str) -> str | None:
    """Which part of a block a parameter belongs to."""
    owner, _, leaf = name.rpartition(".")
    for part, (pattern, _) in PARTS.items():
        leaves = SCALES if part.startswith("scale") else ("weight", "bias")
        if leaf in leaves and re.search(pattern, owner):
            return part
    return None


def _weights(block: nn.Module, config: OdeStudentConfig) -> dict[str, Tensor]:
    """The weights of one block under the names of a field, its layer scales put where the field wants them."""
    parts: dict[str, Tensor] = {}  # "q_proj.weight", "norm1.bias", ...; a fused qkv is taken apart
    scales: dict[str, Tensor] = {}
    for name, value in block.named_parameters():
        part, leaf = str(_part(name)), name.rpartition(".")[2]
        if part.startswith("scale"):
            scales[part] = value
        elif part == "qkv":
            parts |= {f"{letter}_proj.{leaf}": piece for letter, piece in zip("qkv", value.chunk(3), strict=True)}
        else:
            parts[f"{part}.{leaf}"] = value
    for scale, last in (("scale1", "o_proj"), ("scale2", "down_proj")):
        factor, weight, bias = scales.get(scale), parts[f"{last}.weight"], parts.get(f"{last}.bias")
        if config.residual_scale is not None:
            parts[f"{scale}.residual_scale"] = torch.ones_like(weight[:, 0]) if factor is None else factor
        elif factor is not None:
            parts[f"{last}.weight"] = factor[:, None] * weight
            if bias is not None:
                parts[f"{last}.bias"] = factor * bias
    named = (name.partition(".") for name in parts)
    return {f"{PARTS[part][1]}.{leaf}": value for (part, _, leaf), value in zip(named, parts.values(), strict=True)}


def _norm_kind(norm: nn.Module) -> str:
    if isinstance(norm, nn.LayerNorm):
        return "layer"
    if isinstance(norm, CenterNorm):
        return "center"
    return "rms" if "rms" in type(norm).__name__.lower() else type(norm).__name__
