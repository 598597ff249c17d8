"""What depth means: an ODE, or a stack of layers."""

from odevit.depth.base import DEPTHS as DEPTHS
from odevit.depth.base import Depth as Depth
from odevit.depth.base import Integration as Integration
from odevit.depth.ode import OdeDepth as OdeDepth
from odevit.depth.stacked import StackedDepth as StackedDepth
