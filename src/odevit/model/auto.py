"""AutoModel.from_pretrained(folder) finds odevit's classes once the package is imported."""

from __future__ import annotations

from transformers import AutoConfig, AutoModel, AutoModelForImageClassification

from odevit.model.configuration_odevit import OdeViTConfig
from odevit.model.modeling_odevit import OdeViTForImageClassification, OdeViTModel


def register_auto_classes() -> None:
    """Enter the classes with transformers' Auto classes. Harmless when called twice."""
    AutoConfig.register(OdeViTConfig.model_type, OdeViTConfig, exist_ok=True)
    AutoModel.register(OdeViTConfig, OdeViTModel, exist_ok=True)
    AutoModelForImageClassification.register(OdeViTConfig, OdeViTForImageClassification, exist_ok=True)
