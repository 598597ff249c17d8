"""Solvers that are not in the core, searches for fixed points, and drivers of the loop."""

from odevit.solvers.adaptive import AdaptiveSolver as AdaptiveSolver
from odevit.solvers.adaptive import Dopri5 as Dopri5
from odevit.solvers.adaptive import Tsit5 as Tsit5
from odevit.solvers.adjoint import Adjoint as Adjoint
from odevit.solvers.early_exit import STOPS as STOPS
from odevit.solvers.early_exit import Stop as Stop
from odevit.solvers.fixed_point import SEARCHES as SEARCHES
from odevit.solvers.fixed_point import anderson as anderson
from odevit.solvers.fixed_point import broyden as broyden
from odevit.solvers.fixed_point import newton_krylov as newton_krylov
from odevit.solvers.grids import geometric as geometric
from odevit.solvers.multistep import AdamsBashforth2 as AdamsBashforth2
from odevit.solvers.multistep import AdamsBashforth3 as AdamsBashforth3
from odevit.solvers.multistep import ExponentialAdams2 as ExponentialAdams2
from odevit.solvers.multistep import ExponentialAdams3 as ExponentialAdams3
from odevit.solvers.multistep import ExponentialHeun as ExponentialHeun
from odevit.solvers.penalties import PENALTIES as PENALTIES
from odevit.solvers.penalties import Penalty as Penalty
from odevit.solvers.recording import Recording as Recording
from odevit.solvers.strang import Strang as Strang
