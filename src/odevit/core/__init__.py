"""The paper, to be read alone: dx/dt = G(x) + F(x) - leak (x - x0), and the model around it."""

from odevit.core import exponential, ode_depth, runge_kutta, splitting  # noqa: F401 (they register solvers and depths)
