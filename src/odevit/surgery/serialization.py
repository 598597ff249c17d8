"""folder -> model, and model -> a description to build it from again: its class and its own configuration.

Students that version 0.1 saved have their description in encoder.json, base.json and base/config.json.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import json
from pathlib import Path
from typing import Any

import transformers
from torch import nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from odevit.core import modeling_odevit
from odevit.errors import shortened
from odevit.hf.checks import loading_errors, refuse_nan
from odevit.hf.processor import find_processor, statistics_of
from odevit.surgery.configuration_student import OdeStudentConfig
from odevit.surgery.vit_spec import inspect_vit

ENCODER = "encoder.json"
AS_IT_WAS = {"activation": "gelu", "gated": False, "qk_norm": False, "rope_theta": 0.0, "init": "spectral"}
"""What a field could not choose then."""


def load_vit(source: str | Path) -> PreTrainedModel:
    """The model of a folder or hub id, by the class that its config.json names, in evaluation mode.

    Weights that the checkpoint lacks are an error: a teacher must not be completed with random numbers.
    """
    with loading_errors(source):
        config = AutoConfig.from_pretrained(source)
    names = list(config.architectures or ())
    kind = next((known for name in names if (known := _known_class(name)) is not None), None)
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
        # DINO's checkpoints have no pooler, their config does not say so, and a random one would be a random answer.
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
    """What `rebuild` needs: library, class and arguments, and the configuration of a model of transformers."""
    kind, library = type(model), type(model).__module__.partition(".")[0]
    name, config, arguments = kind.__name__, None, {}
    if isinstance(model, PreTrainedModel) and _known_class(name) is kind:
        config = copy.deepcopy(model.config)  # a configuration around it would change its attention
        # What the class takes beside its configuration, read off the model.
        masked = any(key.endswith("mask_token") for key, _ in model.named_parameters())
        beside = {"add_pooling_layer": getattr(model, "pooler", None) is not None, "use_mask_token": masked}
        arguments = {key: value for key, value in beside.items() if _accepts(kind, key)}
    elif library == "timm":
        about: Any = getattr(model, "pretrained_cfg", None) or {}
        name = about.get("architecture", "") if isinstance(about, dict) else getattr(about, "architecture", "")
        remembered = {
            "num_classes": getattr(model, "num_classes", None),
            "global_pool": getattr(model, "global_pool", None),
            "img_size": getattr(getattr(model, "patch_embed", None), "img_size", None),
        }
        arguments = {key: value for key, value in remembered.items() if value is not None}
    return {"library": library, "class": str(name or ""), "arguments": arguments}, config


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


def is_legacy_student(folder: Path) -> bool:
    """Whether a folder holds a student in the format of version 0.1."""
    return (folder / ENCODER).is_file() and not (folder / "config.json").is_file()


def legacy_config(folder: Path, original: nn.Module | None) -> OdeStudentConfig:
    """What such a folder says of its student. The weights have the same names as today."""
    equation = AS_IT_WAS | json.loads((folder / ENCODER).read_text())
    equation.pop("odevit_version", None)
    base = json.loads((folder / "base.json").read_text())
    base_config = AutoConfig.from_pretrained(folder / "base") if (folder / "base").is_dir() else None
    model = (rebuild(base, base_config) if original is None else original).eval()
    processor = find_processor(folder, model)
    statistics = None if processor is None else statistics_of(processor)
    # The blocks that were replaced are counted in the rebuilt model, which still has them.
    return OdeStudentConfig(**equation).resolve_for(model, inspect_vit(model), base, base_config, statistics)
