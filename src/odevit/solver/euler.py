"""x' = x + h f(x, t)."""

from __future__ import annotations

from odevit.solver.base import SOLVERS
from odevit.solver.runge_kutta import RungeKutta
from odevit.solver.tableau import Tableau


@SOLVERS.register("euler")
class Euler(RungeKutta):
    """x' = x + h f(x, t). Order 1, one evaluation.

    With h = 1/N it is a residual network of N layers with tied weights (eq. 1), both components seeing the same x.
    """

    order = 1
    tableau = Tableau(a=((),), b=(1.0,), c=(0.0,))
