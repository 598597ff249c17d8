"""Euler, midpoint, Heun, RK4: explicit Runge-Kutta methods with a fixed step, as their tableaus."""

from __future__ import annotations

from odevit.solver.method import SOLVERS
from odevit.solver.runge_kutta import RungeKutta, Tableau


@SOLVERS.register("euler")
class Euler(RungeKutta):
    """x' = x + h f(x, t). Order 1, one evaluation.

    With h = 1/N it is a residual network of N layers with tied weights (eq. 1), both components seeing the same x.
    """

    order = 1
    tableau = Tableau(a=((),), b=(1.0,), c=(0.0,))


@SOLVERS.register("midpoint")
class Midpoint(RungeKutta):
    """x' = x + h f(x + h/2 f(x, t), t + h/2). Order 2, two evaluations."""

    order = 2
    tableau = Tableau(a=((), (0.5,)), b=(0.0, 1.0), c=(0.0, 0.5))


@SOLVERS.register("heun")
class Heun(RungeKutta):
    """x' = x + h/2 (k_1 + k_2), the explicit trapezoidal rule, often called RK2. Order 2, two evaluations."""

    order = 2
    tableau = Tableau(a=((), (1.0,)), b=(0.5, 0.5), c=(0.0, 1.0))


@SOLVERS.register("rk4")
class RK4(RungeKutta):
    """x' = x + h/6 (k_1 + 2 k_2 + 2 k_3 + k_4), the classical method. Order 4, four evaluations."""

    order = 4
    tableau = Tableau(
        a=((), (0.5,), (0.0, 0.5), (0.0, 0.0, 1.0)),
        b=(1 / 6, 1 / 3, 1 / 3, 1 / 6),
        c=(0.0, 0.5, 0.5, 1.0),
    )
