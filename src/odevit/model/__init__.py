"""Hugging Face: configuration, models, presets, export."""

from odevit.model.auto import register_auto_classes as register_auto_classes
from odevit.model.configuration_odevit import OdeViTConfig as OdeViTConfig
from odevit.model.export import export_onnx as export_onnx
from odevit.model.export import export_program as export_program
from odevit.model.image_processor import make_image_processor as make_image_processor
from odevit.model.layout import TokenLayout as TokenLayout
from odevit.model.modeling_odevit import OdeViTForImageClassification as OdeViTForImageClassification
from odevit.model.modeling_odevit import OdeViTImageClassifierOutput as OdeViTImageClassifierOutput
from odevit.model.modeling_odevit import OdeViTModel as OdeViTModel
from odevit.model.modeling_odevit import OdeViTModelOutput as OdeViTModelOutput
from odevit.model.modeling_odevit import make_field as make_field
from odevit.model.presets import PRESETS as PRESETS
