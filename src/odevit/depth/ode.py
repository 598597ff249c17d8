"""x(T) = x(0) + int_0^T f(x) dt: depth as time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from odevit.depth.meaning import DEPTHS, Depth
from odevit.field.dynamics import Field
from odevit.solver import Solution, Way, solve
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

    def __init__(self, make_field: Callable[[], Field], way: Way) -> None:
        super().__init__(make_field, way)
        self.field = make_field()
        self.fixed_graph = way.is_fixed  # others choose their steps by what they see

    def forward(self, x0: Tokens, way: Way | None = None, **options: Any) -> Solution:
        way = self.way if way is None else way
        solution = solve(
            self.field,
            x0,
            solver=way.method,
            steps=way.steps,
            t1=float(way.horizon),
            grid=way.grid,
            checkpoint=self.recompute if way.is_fixed else False,
            **options,
        )
        return replace(solution, way=way)

    def describe(self) -> str:
        return self.field.describe()

    def export_problem(self, way: Way) -> str | None:
        if way.is_fixed:
            return None
        return (
            f"the solver {way.name!r} chooses its steps while it runs and has no fixed graph to export; "
            "pass a fixed-step one, for example solver='rk4', steps=24"
        )
