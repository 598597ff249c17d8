"""AutoModel.from_pretrained(folder) finds odevit's classes once the package is imported."""

from __future__ import annotations

from transformers import AutoConfig, AutoModel, AutoModelForImageClassification

from odevit.model.configuration_odevit import OdeViTConfig
from odevit.model.configuration_student import OdeStudentConfig
from odevit.model.modeling_odevit import OdeViTForImageClassification, OdeViTModel
from odevit.model.modeling_student import OdeStudent


def register_auto_classes() -> None:
    """Enter the classes with transformers' Auto classes. Harmless when called twice."""
    for config in (OdeViTConfig, OdeStudentConfig):
        AutoConfig.register(config.model_type, config, exist_ok=True)
    AutoModel.register(OdeViTConfig, OdeViTModel, exist_ok=True)
    AutoModelForImageClassification.register(OdeViTConfig, OdeViTForImageClassification, exist_ok=True)
    for auto in (AutoModel, AutoModelForImageClassification):
        auto.register(OdeStudentConfig, OdeStudent, exist_ok=True)
