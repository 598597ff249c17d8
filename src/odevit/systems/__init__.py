"""The family: depths that are not an ODE."""

from odevit.systems.conversion import other_depth as other_depth
from odevit.systems.equilibrium import EquilibriumDepth as EquilibriumDepth
from odevit.systems.recurrent import RecurrentDepth as RecurrentDepth
from odevit.systems.recursions import RecursionsDepth as RecursionsDepth
from odevit.systems.stacked import DenseDepth as DenseDepth
from odevit.systems.stacked import StackedDepth as StackedDepth
from odevit.systems.tied import TiedDepth as TiedDepth
from odevit.systems.universal import UniversalDepth as UniversalDepth
