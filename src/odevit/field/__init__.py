"""What moves the tokens: dx/dt = G(x) + F(x) - leak (x - x0)."""

from odevit.field.attention import ATTENTIONS as ATTENTIONS
from odevit.field.attention import Attention as Attention
from odevit.field.attention import CosineAttention as CosineAttention
from odevit.field.attention import DotProductAttention as DotProductAttention
from odevit.field.attention import HopfieldAttention as HopfieldAttention
from odevit.field.attention import L2Attention as L2Attention
from odevit.field.attention import Rotary as Rotary
from odevit.field.change import Change as Change
from odevit.field.dynamics import Dynamics as Dynamics
from odevit.field.dynamics import Fade as Fade
from odevit.field.dynamics import Field as Field
from odevit.field.hyper import HyperField as HyperField
from odevit.field.knots import KnottedField as KnottedField
from odevit.field.mlp import ACTIVATIONS as ACTIVATIONS
from odevit.field.mlp import Mlp as Mlp
from odevit.field.norm import NORMS as NORMS
from odevit.field.norm import CenterNorm as CenterNorm
from odevit.field.norm import LayerNorm as LayerNorm
from odevit.field.norm import RMSNorm as RMSNorm
from odevit.field.projection import Projection as Projection
from odevit.field.projection import spectral_ as spectral_
from odevit.field.timetable import BLENDS as BLENDS
from odevit.field.vector_field import Branch as Branch
from odevit.field.vector_field import VectorField as VectorField
