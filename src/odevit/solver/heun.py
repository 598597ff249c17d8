"""x' = x + h/2 (k_1 + k_2), k_1 = f(x, t), k_2 = f(x + h k_1, t + h)."""

from __future__ import annotations

from odevit.solver.base import SOLVERS
from odevit.solver.runge_kutta import RungeKutta
from odevit.solver.tableau import Tableau


@SOLVERS.register("heun")
class Heun(RungeKutta):
    """x' = x + h/2 (k_1 + k_2), the explicit trapezoidal rule, often called RK2. Order 2, two evaluations."""

    order = 2
    tableau = Tableau(a=((), (1.0,)), b=(0.5, 0.5), c=(0.0, 1.0))
