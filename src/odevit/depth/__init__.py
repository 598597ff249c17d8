"""What depth means: an ODE, its rest point, or a stack of layers."""

from odevit.depth.equilibrium import EquilibriumDepth as EquilibriumDepth
from odevit.depth.meaning import DEPTHS as DEPTHS
from odevit.depth.meaning import Depth as Depth
from odevit.depth.ode import OdeDepth as OdeDepth
from odevit.depth.stacked import StackedDepth as StackedDepth
