"""x(T) = x(0) + int_0^T f(x) dt: depth as time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from odevit.core.depth import DEPTHS, Depth
from odevit.core.dynamics import Field
from odevit.core.solution import Solution
from odevit.core.solve import solve
from odevit.core.solver_config import SolverConfig
from odevit.tokens import Tokens


@DEPTHS.register("ode")
class OdeDepth(Depth):
    """x(T) = x(0) + int_0^T f(x) dt, one field f for the whole way (eq. 2).

    A neural ODE (Chen et al. 2018) when its solver chooses steps by their error, `dopri5`, and gradients come from the
    adjoint equation; the survey has it as what is left of a stack when its layers become one "single shared function".
    With a fixed grid it is what the paper calls ODE-ViT.
    """

    has_trajectory = True
    shares_field = True

    def __init__(self, make_field: Callable[[], Field], solver_config: SolverConfig) -> None:
        super().__init__(make_field, solver_config)
        self.field = make_field()
        self.fixed_graph = solver_config.is_fixed  # others choose their steps by what they see

    def forward(self, x0: Tokens, solver_config: SolverConfig | None = None, **options: Any) -> Solution:
        solver_config = self.solver_config if solver_config is None else solver_config
        solution = solve(
            self.field,
            x0,
            solver=solver_config.method,
            steps=solver_config.steps,
            t1=float(solver_config.horizon),
            grid=solver_config.grid,
            checkpoint=self.recompute if solver_config.is_fixed else False,
            **options,
        )
        return replace(solution, solver_config=solver_config)

    def describe(self) -> str:
        return self.field.describe()

    def export_problem(self, solver_config: SolverConfig) -> str | None:
        if solver_config.is_fixed:
            return None
        return (
            f"the solver {solver_config.name!r} chooses its steps while it runs and has no fixed graph to export; "
            "pass a fixed-step one, for example solver='rk4', steps=24"
        )
