"""Vision Transformers of continuous depth.

image -> embed -> x(0) -> Depth(field, solver) -> x(T) -> norm, head -> logits
"""

from odevit.distill import Teacher as Teacher
from odevit.field import VectorField as VectorField
from odevit.model import OdeStudent as OdeStudent
from odevit.model import OdeStudentConfig as OdeStudentConfig
from odevit.model import OdeViTBackbone as OdeViTBackbone
from odevit.model import OdeViTConfig as OdeViTConfig
from odevit.model import OdeViTForImageClassification as OdeViTForImageClassification
from odevit.model import OdeViTModel as OdeViTModel
from odevit.model import export_onnx as export_onnx
from odevit.model import export_program as export_program
from odevit.model import get_ode_model as get_ode_model
from odevit.model import load as load
from odevit.model import register_auto_classes
from odevit.solver import Save as Save
from odevit.solver import Solution as Solution
from odevit.solver import Way as Way
from odevit.solver import solve as solve
from odevit.version import __version__ as __version__

register_auto_classes()
