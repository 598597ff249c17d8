"""Hugging Face: configurations, models, presets, export."""

from odevit.model.configuration_equation import make_field as make_field
from odevit.model.configuration_odevit import OdeViTConfig as OdeViTConfig
from odevit.model.configuration_student import OdeStudentConfig as OdeStudentConfig
from odevit.model.export import export_onnx as export_onnx
from odevit.model.export import export_program as export_program
from odevit.model.load import load as load
from odevit.model.modeling_odevit import OdeViTForImageClassification as OdeViTForImageClassification
from odevit.model.modeling_odevit import OdeViTImageClassifierOutput as OdeViTImageClassifierOutput
from odevit.model.modeling_odevit import OdeViTModel as OdeViTModel
from odevit.model.modeling_odevit import OdeViTModelOutput as OdeViTModelOutput
from odevit.model.modeling_student import OdeStudent as OdeStudent
from odevit.model.presets import PRESETS as PRESETS
from odevit.model.processor import make_image_processor as make_image_processor
from odevit.model.protocol import Askable as Askable
from odevit.model.surgery import get_ode_model as get_ode_model
from odevit.tokens import TokenLayout as TokenLayout
