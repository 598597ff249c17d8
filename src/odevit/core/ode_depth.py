"""x(T) = x(0) + int_0^T f(x) dt: depth as time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from odevit.core.base import DEFAULT, DEPTHS, FIELDS, Depth, Field, FixedStepSolver, Request
from odevit.core.solution import Solution
from odevit.core.solve import solve
from odevit.core.solver_config import SolverConfig
from odevit.tokens import TokenLayout, Tokens


@DEPTHS.register("ode")
class OdeDepth(Depth):
    """x(T) = x(0) + int_0^T f(x) dt, one field f for the whole trajectory (eq. 2).

    With a fixed grid it is the paper's ODE-ViT. With the adaptive solver `dopri5` and gradients by the adjoint equation
    it is a neural ODE (Chen et al. 2018), which the survey describes as a stack whose layers became one "single shared
    function".
    """

    has_trajectory = True
    shares_field = True

    def __init__(self, make_field: Callable[[], Field], solver_config: SolverConfig) -> None:
        super().__init__(make_field, solver_config)
        self.field = make_field()
        self.fixed_graph = solver_config.is_fixed  # adaptive solvers choose their steps by the data
        self._own = solver_config, solver_config.method

    def forward(self, x0: Tokens, request: Request = DEFAULT) -> Solution:
        config = request.solver_config or self.solver_config
        solver = self._own[1] if config is self._own[0] else config.method
        solution = solve(
            self.field,
            x0,
            solver=solver,
            steps=config.steps,
            t1=float(config.horizon),
            grid=config.grid,
            checkpoint=self.recompute if isinstance(solver, FixedStepSolver) else False,
            **request.options,
        )
        return replace(solution, solver_config=config)

    def describe(self) -> str:
        return self.field.describe()

    def export_problem(self, solver_config: SolverConfig) -> str | None:
        if solver_config.is_fixed:
            return None
        return (
            f"the solver {solver_config.name!r} chooses its steps while it runs and has no fixed graph to export; "
            "pass a fixed-step one, for example solver='rk4', steps=24"
        )


def make_depth(config: Any, layout: TokenLayout | None = None) -> Depth:
    """The depth that a configuration describes, with its field or fields."""
    make = DEPTHS[config.depth]
    depth = make(lambda: make_field(config, layout), config.solver_config, **(config.depth_options or {}))
    if layout is not None:
        depth.set_layout(layout)
    return depth


def make_field(config: Any, layout: TokenLayout | None = None) -> Field:
    """The field that a configuration describes. Only rotary positions need the layout."""
    return next(kind for kind in FIELDS.values() if kind.matches(config)).make(config, layout)
