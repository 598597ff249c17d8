"""What depth means: an ODE, its rest point, or a stack of layers."""

from odevit.depth.base import DEPTHS as DEPTHS
from odevit.depth.base import Depth as Depth
from odevit.depth.base import Integration as Integration
from odevit.depth.equilibrium import EquilibriumDepth as EquilibriumDepth
from odevit.depth.ode import OdeDepth as OdeDepth
from odevit.depth.stacked import StackedDepth as StackedDepth
