"""name -> model: a run, a student, a ViT, or a bundled model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from transformers import (
    CONFIG_MAPPING,
    AutoBackbone,
    AutoConfig,
    AutoImageProcessor,
    AutoModel,
    AutoModelForImageClassification,
    PreTrainedConfig,
)

from odevit.bundled import bundled_models, register_bundled_names
from odevit.core.base import DEPTHS
from odevit.core.configuration_odevit import OdeViTConfig
from odevit.core.image_model import ImageModel
from odevit.core.modeling_odevit import OdeViTForImageClassification, OdeViTModel
from odevit.errors import shortened
from odevit.hf.checks import loading_errors
from odevit.hf.modeling_backbone import OdeViTBackbone
from odevit.hf.processor import OdeViTImageProcessor, find_processor
from odevit.surgery.configuration_student import OdeStudentConfig
from odevit.surgery.modeling_student import OdeStudent
from odevit.surgery.plain_vit import ViTWrapper, load_vit
from odevit.surgery.vit_spec import fit_to_processor, inspect_vit
from odevit.systems.conversion import other_depth_problem


def load(name: str | os.PathLike[str], depth: str | None = None) -> ImageModel:
    """A classifier, a distilled student or a plain ViT, in evaluation mode; a classifier in single precision.

    Args:
        name: a run's folder, any folder that `save_pretrained` wrote, or the name of a bundled model. A ViT of
            transformers, such as a teacher, gives logits, but has no trajectory.
        depth: another depth for the same weights: "ode", "equilibrium" or "tied" for a classifier that has one of
            these.
    """
    bundled = bundled_models()
    folder = bundled.get(str(name), Path(name)) if not Path(name).exists() else Path(name)
    if not (folder / "config.json").is_file():
        problem = "holds no config.json" if folder.exists() else "is neither a folder nor a bundled model"
        raise ValueError(
            f"{str(name)!r} {problem}; expected the folder of a finished run, one that save_pretrained wrote, or a "
            f"bundled model: {', '.join(bundled) or 'none'}"
        )
    model: Any
    with loading_errors(folder):
        kind = _config_class(folder)
        if depth is not None:
            _check_depth(folder, kind, depth)
        if kind is OdeStudentConfig:
            model = OdeStudent.from_pretrained(folder)
        elif kind is not OdeViTConfig:
            vit = load_vit(folder)
            processor = find_processor(folder, vit)
            model = ViTWrapper(vit, fit_to_processor(inspect_vit(vit), vit, processor), processor)
        else:
            options: Any = {"dtype": torch.float32} | ({} if depth is None else {"depth": depth})
            model, info = OdeViTForImageClassification.from_pretrained(folder, output_loading_info=True, **options)
            if missing := sorted(info["missing_keys"]):
                raise ValueError(
                    f"{folder} holds no head ({shortened(missing)} missing), and its logits would be random; give it "
                    f"one with odevit train init_from={folder}"
                )
    return model.eval()


def _check_depth(folder: Path, kind: type[Any], depth: str) -> None:
    """Refuse a depth that cannot be used with the weights of a folder."""
    if kind is OdeViTConfig:
        config = OdeViTConfig.from_pretrained(folder)
        with torch.device("meta"):  # only the names of its weights are needed
            problem = other_depth_problem(OdeViTModel(config).depth, DEPTHS[depth])
        found = f"a classifier with depth={config.depth!r}"
    else:
        able = ", ".join(repr(name) for name, known in DEPTHS.items() if known.shares_field)
        problem = f"and only a classifier of odevit with one of these can have another depth: {able}"
        found = f"a {kind.__name__.removesuffix('Config')}"
    if problem:
        raise ValueError(f"depth={depth!r} was asked of {folder}, which holds {found}, {problem}")


def _config_class(folder: Path) -> type[Any]:
    """The class of a folder's configuration."""
    path, settings = folder / "config.json", PreTrainedConfig.get_config_dict(folder)[0]
    if not isinstance(settings, dict):
        raise ValueError(f"{path} holds a {type(settings).__name__}; expected names with their values")
    # For an unknown one AutoConfig would ask for trust_remote_code, which is not the problem.
    if (name := settings.get("model_type")) not in CONFIG_MAPPING:
        raise ValueError(f"{path} is of a {name!r}, which neither transformers nor odevit knows")
    return type(AutoConfig.from_pretrained(folder))


def register_auto_classes() -> None:
    """Register the classes and the bundled models with transformers. It may be called twice."""
    register_bundled_names()
    for config in (OdeViTConfig, OdeStudentConfig):
        AutoConfig.register(config.model_type, config, exist_ok=True)
    AutoModel.register(OdeViTConfig, OdeViTModel, exist_ok=True)
    AutoBackbone.register(OdeViTConfig, OdeViTBackbone, exist_ok=True)
    AutoModelForImageClassification.register(OdeViTConfig, OdeViTForImageClassification, exist_ok=True)
    AutoImageProcessor.register(OdeViTConfig, image_processor_classes={"pil": OdeViTImageProcessor}, exist_ok=True)
    AutoModel.register(OdeStudentConfig, OdeStudent, exist_ok=True)
    AutoModelForImageClassification.register(OdeStudentConfig, OdeStudent, exist_ok=True)
