"""x' = x + h/6 (k_1 + 2 k_2 + 2 k_3 + k_4)."""

from __future__ import annotations

from odevit.solver.base import SOLVERS
from odevit.solver.runge_kutta import RungeKutta
from odevit.solver.tableau import Tableau


@SOLVERS.register("rk4")
class RK4(RungeKutta):
    """x' = x + h/6 (k_1 + 2 k_2 + 2 k_3 + k_4), the classical method. Order 4, four evaluations."""

    order = 4
    tableau = Tableau(
        a=((), (0.5,), (0.0, 0.5), (0.0, 0.0, 1.0)),
        b=(1 / 6, 1 / 3, 1 / 3, 1 / 6),
        c=(0.0, 0.5, 0.5, 1.0),
    )
