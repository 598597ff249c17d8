"""How a step is made, and the loop that makes them: solve(field, x0, solver=, steps=) -> Solution."""

from odevit.solver.adaptive import AdaptiveSolver as AdaptiveSolver
from odevit.solver.base import SOLVERS as SOLVERS
from odevit.solver.base import FixedStepSolver as FixedStepSolver
from odevit.solver.base import Solver as Solver
from odevit.solver.base import make_solver as make_solver
from odevit.solver.dopri5 import Dopri5 as Dopri5
from odevit.solver.euler import Euler as Euler
from odevit.solver.exponential_euler import ExponentialEuler as ExponentialEuler
from odevit.solver.exponential_heun import ExponentialHeun as ExponentialHeun
from odevit.solver.heun import Heun as Heun
from odevit.solver.lie_trotter import LieTrotter as LieTrotter
from odevit.solver.midpoint import Midpoint as Midpoint
from odevit.solver.penalty import Penalty as Penalty
from odevit.solver.penalty import Step as Step
from odevit.solver.rk4 import RK4 as RK4
from odevit.solver.runge_kutta import RungeKutta as RungeKutta
from odevit.solver.save import Save as Save
from odevit.solver.solution import Solution as Solution
from odevit.solver.solution import Stats as Stats
from odevit.solver.solve import solve as solve
from odevit.solver.strang import Strang as Strang
from odevit.solver.tableau import Tableau as Tableau
from odevit.solver.tsit5 import Tsit5 as Tsit5
