"""name -> a model one can ask: a run, a student, or a bundled model."""

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
from odevit.surgery.serialization import is_legacy_student, load_vit
from odevit.surgery.vit_spec import fit_to_processor, inspect_vit
from odevit.surgery.vit_wrapper import ViTWrapper


def load(name: str | os.PathLike[str], depth: str | None = None) -> ImageModel:
    """A classifier, a distilled student or somebody's ViT, in evaluation mode; a classifier in single precision.

    Args:
        name: a run's folder, any folder that `save_pretrained` wrote, or the name of a bundled model. A ViT of
            transformers, such as a teacher, can be asked and scored, but has no trajectory.
        depth: another meaning of depth for the same weights: "ode", "equilibrium" or "tied" for a classifier that is
            one of them.
    """
    bundled, folder = bundled_models(), Path(name)
    if not folder.exists():
        folder = bundled.get(str(name), folder)
    legacy = is_legacy_student(folder)
    if not legacy and not (folder / "config.json").is_file():
        problem = "holds no config.json" if folder.exists() else "is neither a folder nor a bundled model"
        raise ValueError(
            f"{str(name)!r} {problem}; expected the folder of a finished run, one that save_pretrained wrote, or a "
            f"bundled model: {', '.join(bundled) or 'none'}"
        )
    model: Any
    with loading_errors(folder):
        kind = OdeStudentConfig if legacy else _kind(folder)
        if depth is not None:
            _check_shared(folder, kind, depth)
        if kind is OdeStudentConfig:
            model = OdeStudent.from_pretrained(folder)
        elif kind is not OdeViTConfig:
            vit = load_vit(folder)
            processor = find_processor(folder, vit)
            model = ViTWrapper(vit, fit_to_processor(inspect_vit(vit), vit, processor), processor)
        else:
            other = {} if depth is None else {"depth": depth}
            loaded: Any = OdeViTForImageClassification.from_pretrained(
                folder, dtype=torch.float32, output_loading_info=True, **other
            )
            model, missing = loaded[0], sorted(loaded[1]["missing_keys"])
            if missing:
                raise ValueError(
                    f"{folder} holds no head ({shortened(missing)} missing), and its answers would be random; give it "
                    f"one with odevit train init_from={folder}"
                )
    return model.eval()


def _check_shared(folder: Path, kind: type[Any], depth: str) -> None:
    """Whether the model of a folder and another depth are meanings of one field; its depth says so itself."""
    other = DEPTHS[depth]
    if kind is not OdeViTConfig:
        able = ", ".join(repr(name) for name, known in DEPTHS.items() if known.shares_field)
        raise ValueError(
            f"depth={depth!r} was asked of {folder}, which holds a {kind.__name__.removesuffix('Config')}; only these "
            f"can take each other's place, in a classifier of odevit: {able}"
        )
    config = OdeViTConfig.from_pretrained(folder)
    with torch.device("meta"):  # without numbers: what counts is whose weights there are
        own = OdeViTModel(config).depth
    if problem := own.other_problem(other):
        raise ValueError(
            f"depth={depth!r} was asked of {folder}, which holds a classifier with depth={config.depth!r}, {problem}"
        )


def _kind(folder: Path) -> type[Any]:
    """The class of a folder's configuration."""
    settings: Any = PreTrainedConfig.get_config_dict(folder)[0]
    if not isinstance(settings, dict):
        raise ValueError(
            f"{folder / 'config.json'} holds a {type(settings).__name__}; expected names with their values"
        )
    name = settings.get("model_type")
    # The code beside our weights would be asked for another one, which is not what is wrong.
    if name not in CONFIG_MAPPING:
        raise ValueError(f"{folder / 'config.json'} is of a {name!r}, which neither transformers nor odevit knows")
    return type(AutoConfig.from_pretrained(folder))


def register_auto_classes() -> None:
    """Enter the classes and the bundled models with transformers. Harmless when called twice."""
    register_bundled_names()
    for config in (OdeViTConfig, OdeStudentConfig):
        AutoConfig.register(config.model_type, config, exist_ok=True)
    AutoModel.register(OdeViTConfig, OdeViTModel, exist_ok=True)
    AutoBackbone.register(OdeViTConfig, OdeViTBackbone, exist_ok=True)
    AutoModelForImageClassification.register(OdeViTConfig, OdeViTForImageClassification, exist_ok=True)
    AutoImageProcessor.register(OdeViTConfig, image_processor_classes={"pil": OdeViTImageProcessor}, exist_ok=True)
    for auto in (AutoModel, AutoModelForImageClassification):
        auto.register(OdeStudentConfig, OdeStudent, exist_ok=True)
