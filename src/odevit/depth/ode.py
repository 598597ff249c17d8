"""x(T) = x(0) + int_0^T f(x) dt: depth as time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from odevit.depth.base import DEPTHS, Depth
from odevit.field.dynamics import Field
from odevit.shapes import Tokens
from odevit.solver import FixedStepSolver, Penalty, Save, Solution, Solver, make_solver, solve


@DEPTHS.register("ode")
class OdeDepth(Depth):
    """x(T) = x(0) + int_0^T f(x) dt, one field f for the whole way (eq. 2)."""

    def __init__(self, make_field: Callable[[], Field], *, solver: str, steps: int, horizon: float) -> None:
        super().__init__(make_field, solver=solver, steps=steps, horizon=horizon)
        self.field = make_field()

    def forward(
        self,
        x0: Tokens,
        *,
        solver: str | Solver | None = None,
        steps: int | None = None,
        horizon: float | None = None,
        save: Save | str | Iterable[int] | None = None,
        penalties: Mapping[str, Penalty] | None = None,
        adjoint: bool = False,
    ) -> Solution:
        method = make_solver(self.solver if solver is None else solver)
        t1 = self.horizon if horizon is None else float(horizon)
        if not t1 > 0:
            raise ValueError(f"horizon={horizon!r}; expected a time > 0 (the model's own is {self.horizon:g})")
        return solve(
            self.field,
            x0,
            solver=method,
            steps=self.steps if steps is None else steps,
            t1=t1,
            save=save,
            penalties=penalties,
            checkpoint=self.gradient_checkpointing and self.training and isinstance(method, FixedStepSolver),
            adjoint=adjoint,
        )
