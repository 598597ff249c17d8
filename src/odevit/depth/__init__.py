"""What depth means: an ODE, its rest point, layers, stacked or repeated, or as much as an image needs."""

from odevit.depth.blocks import BLOCKS as BLOCKS
from odevit.depth.dense import DenseDepth as DenseDepth
from odevit.depth.equilibrium import EquilibriumDepth as EquilibriumDepth
from odevit.depth.layered import LayeredDepth as LayeredDepth
from odevit.depth.layered import RepeatedDepth as RepeatedDepth
from odevit.depth.layered import Walk as Walk
from odevit.depth.meaning import DEPTHS as DEPTHS
from odevit.depth.meaning import Depth as Depth
from odevit.depth.ode import OdeDepth as OdeDepth
from odevit.depth.recurrent import RecurrentDepth as RecurrentDepth
from odevit.depth.recursions import RecursionsDepth as RecursionsDepth
from odevit.depth.scaling import SCALINGS as SCALINGS
from odevit.depth.stacked import StackedDepth as StackedDepth
from odevit.depth.tied import TiedDepth as TiedDepth
from odevit.depth.universal import UniversalDepth as UniversalDepth
