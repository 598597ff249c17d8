"""folder -> model, and model -> a description from which it can be built again: its class and configuration."""

from __future__ import annotations

import copy
import importlib
import inspect
from pathlib import Path
from typing import Any

import transformers
from torch import nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from odevit.core import modeling_odevit
from odevit.errors import shortened
from odevit.hf.checks import loading_errors, refuse_nan
from odevit.surgery.configuration_student import OdeStudentConfig


def load_vit(source: str | Path) -> PreTrainedModel:
    """The model of a folder or hub id, of the class that its config.json names, in evaluation mode.

    Weights that the checkpoint lacks are an error, because they would be random numbers.
    """
    with loading_errors(source):
        config = AutoConfig.from_pretrained(source)
    names = list(config.architectures or ())
    kind = next((known for name in names if (known := _find_class(name)) is not None), None)
    if config.model_type == OdeStudentConfig.model_type:
        raise ValueError(
            f"{source} holds a distilled student, whose depth is an equation already; give the ViT that it was made "
            "from, or another one"
        )
    if kind is None:
        raise ValueError(
            f"{source} names the architectures {names}, none of which transformers or odevit knows; "
            "load the model yourself and pass it instead of its folder"
        )
    model, missing = _load(kind, source)
    if missing and all("pooler." in key for key in missing) and _accepts(kind, "add_pooling_layer"):
        # DINO's checkpoints have no pooler and their config does not say so; a pooler would have random weights.
        model, missing = _load(kind, source, add_pooling_layer=False)
    if missing:
        raise ValueError(
            f"the checkpoint {source} lacks {len(missing)} weights of {kind.__name__} ({shortened(missing)}); a "
            "teacher needs all of them"
        )
    return model.eval()


def _load(kind: type[PreTrainedModel], source: str | Path, **arguments: Any) -> tuple[PreTrainedModel, list[str]]:
    with loading_errors(source):
        loaded: Any = kind.from_pretrained(source, output_loading_info=True, **arguments)
    model, info = loaded
    refuse_nan(model, source)
    # The mask token is for pre-training; no image in a distillation is masked.
    return model, sorted(key for key in info["missing_keys"] if not key.endswith("mask_token"))


def describe(model: nn.Module) -> tuple[dict[str, Any], PreTrainedConfig | None]:
    """The arguments of `rebuild`: library, class and arguments, and the configuration of a model of transformers."""
    kind, library = type(model), type(model).__module__.partition(".")[0]
    name, config, arguments = kind.__name__, None, {}
    if isinstance(model, PreTrainedModel) and _find_class(name) is kind:
        config = copy.deepcopy(model.config)  # the student's would change its attention
        # The arguments of the class beside its configuration, as the model has them.
        masked = any(key.endswith("mask_token") for key, _ in model.named_parameters())
        given = {"add_pooling_layer": getattr(model, "pooler", None) is not None, "use_mask_token": masked}
        arguments = {key: value for key, value in given.items() if _accepts(kind, key)}
    elif library == "timm":
        cfg: Any = getattr(model, "pretrained_cfg", None) or {}
        name = cfg.get("architecture", "") if isinstance(cfg, dict) else getattr(cfg, "architecture", "")
        values = {
            "num_classes": getattr(model, "num_classes", None),
            "global_pool": getattr(model, "global_pool", None),
            "img_size": getattr(getattr(model, "patch_embed", None), "img_size", None),
        }
        arguments = {key: value for key, value in values.items() if value is not None}
    return {"library": library, "class": str(name or ""), "arguments": arguments}, config


def rebuild(base: dict[str, Any], config: PreTrainedConfig | None) -> nn.Module:
    """A model of the class that `describe` returned, with random weights."""
    name, arguments = base["class"], base["arguments"]
    kind = _find_class(name)
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


def _find_class(name: str) -> type[PreTrainedModel] | None:
    known = getattr(modeling_odevit, name, None) or getattr(transformers, name, None)
    return known if isinstance(known, type) and issubclass(known, PreTrainedModel) else None


def _accepts(kind: type, argument: str) -> bool:
    return argument in inspect.signature(kind).parameters
