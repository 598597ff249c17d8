"""x' = x + h f(x + h/2 f(x, t), t + h/2)."""

from __future__ import annotations

from odevit.solver.base import SOLVERS
from odevit.solver.runge_kutta import RungeKutta
from odevit.solver.tableau import Tableau


@SOLVERS.register("midpoint")
class Midpoint(RungeKutta):
    """x' = x + h f(x + h/2 f(x, t), t + h/2). Order 2, two evaluations."""

    order = 2
    tableau = Tableau(a=((), (0.5,)), b=(0.0, 1.0), c=(0.0, 0.5))
