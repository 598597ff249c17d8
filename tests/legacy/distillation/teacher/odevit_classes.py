"""The classes of this model, for pipeline(..., trust_remote_code=True) without `import odevit`; needs odevit."""

from odevit import OdeStudent, OdeStudentConfig, OdeViTBackbone, OdeViTConfig, OdeViTForImageClassification, OdeViTModel

__all__ = [
    "OdeStudent",
    "OdeStudentConfig",
    "OdeViTBackbone",
    "OdeViTConfig",
    "OdeViTForImageClassification",
    "OdeViTModel",
]
