"""folder -> model, and model -> a description to build it from again: its class and its own configuration."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

import transformers
from torch import nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from odevit.model import modeling_odevit


def load_vit(source: str | Path) -> PreTrainedModel:
    """The model of a folder or hub id, by the class that its config.json names, in evaluation mode.

    Weights that the checkpoint lacks are an error: a teacher must not be completed with random numbers.
    """
    config = AutoConfig.from_pretrained(source)
    names = list(config.architectures or ())
    kind = next((known for name in names if (known := _known_class(name)) is not None), None)
    if kind is None:
        raise ValueError(
            f"{source} names the architectures {names}, none of which transformers or odevit knows; "
            "load the model yourself and pass it instead of its folder"
        )
    model, missing = _load(kind, source)
    if missing and all("pooler." in key for key in missing) and _accepts(kind, "add_pooling_layer"):
        # DINO's checkpoints have no pooler, their config does not say so, and a random one would be a random answer.
        model, missing = _load(kind, source, add_pooling_layer=False)
    if missing:
        raise ValueError(
            f"the checkpoint {source} lacks {len(missing)} weights of {kind.__name__} ({', '.join(missing[:5])}"
            f"{', ...' if len(missing) > 5 else ''}); a teacher needs all of them"
        )
    return model.eval()


def _load(kind: type[PreTrainedModel], source: str | Path, **arguments: Any) -> tuple[PreTrainedModel, list[str]]:
    loaded: Any = kind.from_pretrained(source, output_loading_info=True, **arguments)
    model, info = loaded
    # The mask token is for pre-training; no image in a distillation is masked.
    return model, sorted(key for key in info["missing_keys"] if not key.endswith("mask_token"))


def describe(model: nn.Module) -> tuple[dict[str, Any], PreTrainedConfig | None]:
    """What `rebuild` needs: library, class and arguments, and the configuration of a model of transformers."""
    name = type(model).__name__
    about: dict[str, Any] = {"library": type(model).__module__.partition(".")[0], "class": name, "arguments": {}}
    if isinstance(model, PreTrainedModel) and _known_class(name) is type(model):
        return about | {"arguments": _unsaid_arguments(model)}, model.config
    if about["library"] == "timm":
        about["class"], about["arguments"] = _timm_recipe(model)
    return about, None


def rebuild(base: dict[str, Any], config: PreTrainedConfig | None) -> nn.Module:
    """A model with the architecture that `describe` wrote down, its weights random."""
    name, arguments = base["class"], base["arguments"]
    kind = _known_class(name)
    if kind is not None and config is not None:
        return kind(config, **arguments)
    if base["library"] == "timm" and name:
        try:
            return importlib.import_module("timm").create_model(name, **arguments)
        except ImportError as error:
            raise ImportError(f"the folder holds a student of timm's {name}; pip install timm") from error
    raise ValueError(
        f"the folder holds a student of {base['library']}'s {name}, which cannot be built from its name alone; "
        "pass OdeStudent.from_pretrained(folder, original=model)"
    )


def _known_class(name: str) -> type[PreTrainedModel] | None:
    known = getattr(modeling_odevit, name, None) or getattr(transformers, name, None)
    return known if isinstance(known, type) and issubclass(known, PreTrainedModel) else None


def _accepts(kind: type, argument: str) -> bool:
    return argument in inspect.signature(kind).parameters


def _unsaid_arguments(model: PreTrainedModel) -> dict[str, bool]:
    """Arguments that a class takes beside its configuration, read off the model."""
    arguments = {}
    if _accepts(type(model), "add_pooling_layer"):
        arguments["add_pooling_layer"] = getattr(model, "pooler", None) is not None
    if _accepts(type(model), "use_mask_token"):
        arguments["use_mask_token"] = any(name.endswith("mask_token") for name, _ in model.named_parameters())
    return arguments


def _timm_recipe(model: nn.Module) -> tuple[str, dict[str, Any]]:
    """The name and the arguments of timm's create_model, as far as a model of timm remembers them."""
    about: Any = getattr(model, "pretrained_cfg", None) or {}
    arguments = {
        "num_classes": getattr(model, "num_classes", None),
        "global_pool": getattr(model, "global_pool", None),
        "img_size": getattr(getattr(model, "patch_embed", None), "img_size", None),
    }
    name = about.get("architecture", "") if isinstance(about, dict) else getattr(about, "architecture", "")
    return str(name or ""), {key: value for key, value in arguments.items() if value is not None}
