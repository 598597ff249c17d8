"""Rest points of a step."""

import pytest
import torch

from odevit.core.base import SOLVERS, Dynamics, FixedStepSolver
from odevit.core.solver_config import make_solver

FIXED = [name for name in SOLVERS if isinstance(make_solver(name), FixedStepSolver)]


@pytest.mark.parametrize("name", FIXED)
@pytest.mark.parametrize("h", [0.25, 1.0])
def test_step_is_zero_at_a_rest_point_if_rests_with_equation(name, h):
    """2 - 3 x^3 + x - (x - 1) = 0 at x = 1: neither component vanishes there, only their sum with the leak."""
    anchor = torch.ones(1, dtype=torch.float64)
    parts = {"first": lambda x, t, observer: 2 - 3 * x**3, "second": lambda x, t, observer: x}
    solver = make_solver(name)
    assert isinstance(solver, FixedStepSolver)
    moved = (solver.step(Dynamics(parts, anchor=anchor, leak=1.0), anchor, 0.0, h) - anchor).abs().item()
    assert (moved < 1e-12) == solver.rests_with_equation
