"""How weights begin, and which ones a model accepts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as hf_init

from odevit.field import Branch, CenterNorm, VectorField, spectral_
from odevit.field.time import TimeModulation
from odevit.model.configuration_odevit import OdeViTConfig
from odevit.model.embedding import Embedding
from odevit.model.tokenizer import ConvTokenizer, PatchTokenizer


def initialise(module: nn.Module, config: OdeViTConfig) -> None:
    """Initialise one module. Called for children before their parents, so that a parent can overrule them.

    Tensors that came from a checkpoint are left alone: Hugging Face marks them, and its initialisers look.
    """
    std = config.initializer_range
    if isinstance(module, nn.Linear):
        hf_init.trunc_normal_(module.weight, std=std)
        if module.bias is not None:
            hf_init.zeros_(module.bias)
    elif isinstance(module, CenterNorm | nn.LayerNorm):
        hf_init.ones_(module.weight)
        hf_init.zeros_(module.bias)
    elif isinstance(module, nn.RMSNorm):
        hf_init.ones_(module.weight)
    elif isinstance(module, Branch) and module.residual_scale is not None:
        hf_init.constant_(module.residual_scale, config.residual_scale)
    elif isinstance(module, TimeModulation):
        hf_init.zeros_(module.out_proj.weight)
        hf_init.zeros_(module.out_proj.bias)
    elif isinstance(module, Embedding):
        for tokens in (module.cls_token, module.register_tokens, module.positions):
            if tokens is not None:
                hf_init.trunc_normal_(tokens, std=std)
    elif isinstance(module, ConvTokenizer):
        for convolution in module.convolutions:
            hf_init.kaiming_normal_(convolution.weight, nonlinearity="relu")
    elif isinstance(module, PatchTokenizer):
        _project(module.projection.weight, config)
        hf_init.zeros_(module.projection.bias)
    elif isinstance(module, VectorField):
        for weight in projections(module):
            _project(weight, config)


def projections(field: VectorField) -> Iterator[Tensor]:
    """Every matrix of the field's attention and MLP, Q, K and V included; not those of the time modulation."""
    for branch in field.components.values():
        for module in branch.body.modules():
            if isinstance(module, nn.Linear):
                yield module.weight


def _project(weight: Tensor, config: OdeViTConfig) -> None:
    if getattr(weight, "_is_hf_initialized", False):
        return
    if config.init == "spectral":
        spectral_(weight)
    else:
        with torch.no_grad():
            hf_init.trunc_normal_(weight, std=config.initializer_range)


def refuse_foreign_weights(source: str, info: dict[str, Any]) -> None:
    """Raise when weights are missing. A new head on an encoder's checkpoint is fine: that is how one fine-tunes."""
    missing = sorted(key for key in info["missing_keys"] if not key.startswith("classifier."))
    if not missing:
        return
    unexpected = sorted(info["unexpected_keys"])
    raise ValueError(
        f"the checkpoint {source} does not fit this model: {len(missing)} weights are missing "
        f"({', '.join(missing[:5])}{', ...' if len(missing) > 5 else ''}) and {len(unexpected)} are of no use "
        f"({', '.join(unexpected[:5])}{', ...' if len(unexpected) > 5 else ''}). "
        "Load it with the class that its config.json names under 'architectures'"
    )
