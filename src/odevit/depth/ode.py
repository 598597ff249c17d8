"""x(T) = x(0) + int_0^T f(x) dt: depth as time."""

from __future__ import annotations

from collections.abc import Callable

from odevit.depth.base import AS_CONFIGURED, DEPTHS, Depth, Integration
from odevit.field.dynamics import Field
from odevit.shapes import Tokens
from odevit.solver import FixedStepSolver, Solution, make_solver, solve


@DEPTHS.register("ode")
class OdeDepth(Depth):
    """x(T) = x(0) + int_0^T f(x) dt, one field f for the whole way (eq. 2)."""

    def __init__(self, make_field: Callable[[], Field], *, solver: str, steps: int, horizon: float) -> None:
        super().__init__(make_field, solver=solver, steps=steps, horizon=horizon)
        self.field = make_field()

    def forward(self, x0: Tokens, how: Integration = AS_CONFIGURED) -> Solution:
        method = make_solver(self.solver if how.solver is None else how.solver)
        t1 = self.horizon if how.horizon is None else float(how.horizon)
        if not t1 > 0:
            raise ValueError(f"horizon={how.horizon!r}; expected a time > 0 (the model's own is {self.horizon:g})")
        return solve(
            self.field,
            x0,
            solver=method,
            steps=self.steps if how.steps is None else how.steps,
            t1=t1,
            save=how.save,
            penalties=how.penalties,
            checkpoint=self.gradient_checkpointing and self.training and isinstance(method, FixedStepSolver),
            adjoint=how.adjoint,
        )
