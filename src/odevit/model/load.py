"""name -> a model one can ask: a run, a student, or a bundled model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModel, AutoModelForImageClassification

from odevit.bundled import bundled_models
from odevit.model.configuration_odevit import OdeViTConfig
from odevit.model.configuration_student import OdeStudentConfig
from odevit.model.modeling_odevit import OdeViTForImageClassification, OdeViTModel
from odevit.model.modeling_student import OdeStudent
from odevit.model.origin import is_legacy_student
from odevit.model.protocol import Askable


def load(name: str | os.PathLike[str]) -> Askable:
    """A classifier or a distilled student, in evaluation mode; a classifier in single precision.

    Args:
        name: a run's folder, any folder that `save_pretrained` wrote, or the name of a bundled model.
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
    if legacy or isinstance(AutoConfig.from_pretrained(folder), OdeStudentConfig):
        model = OdeStudent.from_pretrained(folder)
    else:
        model = OdeViTForImageClassification.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


def register_auto_classes() -> None:
    """Enter the classes with transformers' Auto classes. Harmless when called twice."""
    for config in (OdeViTConfig, OdeStudentConfig):
        AutoConfig.register(config.model_type, config, exist_ok=True)
    AutoModel.register(OdeViTConfig, OdeViTModel, exist_ok=True)
    AutoModelForImageClassification.register(OdeViTConfig, OdeViTForImageClassification, exist_ok=True)
    for auto in (AutoModel, AutoModelForImageClassification):
        auto.register(OdeStudentConfig, OdeStudent, exist_ok=True)
