"""How a step is made, and the loop that makes them: solve(field, x0, solver=, steps=) -> Solution."""

from odevit.aliases import keep_old_names
from odevit.solver.adaptive import AdaptiveSolver as AdaptiveSolver
from odevit.solver.adaptive import Dopri5 as Dopri5
from odevit.solver.adaptive import Tsit5 as Tsit5
from odevit.solver.anderson import anderson as anderson
from odevit.solver.broyden import broyden as broyden
from odevit.solver.exponential import ExponentialEuler as ExponentialEuler
from odevit.solver.exponential import ExponentialHeun as ExponentialHeun
from odevit.solver.fixed_point import SEARCHES as SEARCHES
from odevit.solver.fixed_point import FixedPoint as FixedPoint
from odevit.solver.grid import GRIDS as GRIDS
from odevit.solver.grid import Grid as Grid
from odevit.solver.hutchinson import jacobian_size as jacobian_size
from odevit.solver.implicit import RESTLESS as RESTLESS
from odevit.solver.implicit import implicit as implicit
from odevit.solver.implicit import phantom as phantom
from odevit.solver.loop import Recompute as Recompute
from odevit.solver.method import SOLVERS as SOLVERS
from odevit.solver.method import FixedStepSolver as FixedStepSolver
from odevit.solver.method import Solver as Solver
from odevit.solver.method import make_solver as make_solver
from odevit.solver.multistep import AdamsBashforth2 as AdamsBashforth2
from odevit.solver.multistep import AdamsBashforth3 as AdamsBashforth3
from odevit.solver.multistep import ExponentialAdams2 as ExponentialAdams2
from odevit.solver.multistep import ExponentialAdams3 as ExponentialAdams3
from odevit.solver.multistep import Multistep as Multistep
from odevit.solver.newton_krylov import newton_krylov as newton_krylov
from odevit.solver.penalty import PENALTIES as PENALTIES
from odevit.solver.penalty import Penalty as Penalty
from odevit.solver.penalty import Step as Step
from odevit.solver.runge_kutta import RK4 as RK4
from odevit.solver.runge_kutta import Euler as Euler
from odevit.solver.runge_kutta import Heun as Heun
from odevit.solver.runge_kutta import Midpoint as Midpoint
from odevit.solver.runge_kutta import RungeKutta as RungeKutta
from odevit.solver.runge_kutta import Tableau as Tableau
from odevit.solver.solution import Save as Save
from odevit.solver.solution import Solution as Solution
from odevit.solver.solution import Stats as Stats
from odevit.solver.solve import Equation as Equation
from odevit.solver.solve import dynamics_of as dynamics_of
from odevit.solver.solve import solve as solve
from odevit.solver.splittings import LieTrotter as LieTrotter
from odevit.solver.splittings import Strang as Strang
from odevit.solver.stop import STOPS as STOPS
from odevit.solver.stop import Departures as Departures
from odevit.solver.stop import Moment as Moment
from odevit.solver.stop import Stop as Stop
from odevit.solver.stop import make_stop as make_stop
from odevit.solver.stop import stop_problems as stop_problems
from odevit.solver.way import MOST_STEPS as MOST_STEPS
from odevit.solver.way import Way as Way

keep_old_names(__name__)
