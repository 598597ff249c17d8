"""How weights begin, and which ones a model accepts."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import initialization as hf_init

from odevit.field import Branch, CenterNorm, Projection, spectral_
from odevit.field.time import TimeModulation
from odevit.model.configuration_odevit import OdeViTConfig
from odevit.model.embedding import Embedding


def initialise(module: nn.Module, config: OdeViTConfig) -> None:
    """Initialise the tensors that a module owns itself.

    Tensors that came from a checkpoint are left alone: Hugging Face marks them, and its initialisers look.
    """
    std = config.initializer_range
    if isinstance(module, Projection):
        _project(module.weight, config)
        if module.bias is not None:
            hf_init.zeros_(module.bias)
    elif isinstance(module, nn.Linear):
        hf_init.trunc_normal_(module.weight, std=std)
        hf_init.zeros_(module.bias)
    elif isinstance(module, nn.Conv2d):
        if module.stride == module.kernel_size:  # patches that do not overlap: a linear map, as in the field
            _project(module.weight, config)
        else:
            hf_init.kaiming_normal_(module.weight, nonlinearity="relu")
        if module.bias is not None:
            hf_init.zeros_(module.bias)
    elif isinstance(module, CenterNorm | nn.LayerNorm):
        hf_init.ones_(module.weight)
        hf_init.zeros_(module.bias)
    elif isinstance(module, nn.RMSNorm):
        hf_init.ones_(module.weight)
    elif isinstance(module, Branch) and module.residual_scale is not None:
        hf_init.constant_(module.residual_scale, float(config.residual_scale or 0.0))
    elif isinstance(module, TimeModulation):
        hf_init.zeros_(module.weight)
        hf_init.zeros_(module.bias)
    elif isinstance(module, Embedding):
        for tokens in (module.cls_token, module.register_tokens, module.positions):
            if tokens is not None:
                hf_init.trunc_normal_(tokens, std=std)


def _project(weight: Tensor, config: OdeViTConfig) -> None:
    if config.init == "normal":
        hf_init.trunc_normal_(weight, std=config.initializer_range)
    elif not getattr(weight, "_is_hf_initialized", False):
        spectral_(weight)


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
