"""Vision Transformers of continuous depth.

image -> embed -> x(0) -> Depth(field, solver) -> x(T) -> norm, head -> logits
"""

# What has a name registers itself when its package is imported.
from odevit import attention as attention
from odevit import deprecated as deprecated
from odevit import hf as hf
from odevit import objectives as objectives
from odevit import solvers as solvers
from odevit import systems as systems
from odevit import time_varying as time_varying
from odevit.core import exponential as exponential
from odevit.core import splitting as splitting
from odevit.core.configuration_odevit import OdeViTConfig as OdeViTConfig
from odevit.core.field import VectorField as VectorField
from odevit.core.modeling_odevit import OdeViTForImageClassification as OdeViTForImageClassification
from odevit.core.modeling_odevit import OdeViTModel as OdeViTModel
from odevit.core.solution import SaveAt as SaveAt
from odevit.core.solution import Solution as Solution
from odevit.core.solve import solve as solve
from odevit.core.solver_config import SolverConfig as SolverConfig
from odevit.deprecated import keep_old_names
from odevit.distill.teacher import Teacher as Teacher
from odevit.hf.export import export_onnx as export_onnx
from odevit.hf.export import export_program as export_program
from odevit.hf.modeling_backbone import OdeViTBackbone as OdeViTBackbone
from odevit.loading import load as load
from odevit.loading import register_auto_classes
from odevit.surgery.configuration_student import OdeStudentConfig as OdeStudentConfig
from odevit.surgery.modeling_student import OdeStudent as OdeStudent
from odevit.surgery.surgery import get_ode_model as get_ode_model
from odevit.version import __version__ as __version__

register_auto_classes()
keep_old_names(__name__)
keep_old_names("odevit.errors")
