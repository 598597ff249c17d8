"""x(T) = x(0) + int_0^T f(x) dt: depth as time."""

from __future__ import annotations

from collections.abc import Callable

from odevit.depth.base import AS_CONFIGURED, DEPTHS, Depth, Integration
from odevit.errors import ConfigError
from odevit.field.dynamics import Field
from odevit.shapes import Tokens
from odevit.solver import FixedStepSolver, Save, Solution, Solver, make_solver, make_stop, solve, solve_until


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
        if how.stop is not None:
            return self._until(x0, method, t1, how)
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

    def _until(self, x0: Tokens, method: Solver, t1: float, how: Integration) -> Solution:
        """Each sample as far as it needs."""
        assert how.stop is not None
        problems = []
        if not isinstance(method, FixedStepSolver):
            problems.append(f"{type(method).__name__} chooses its own steps; use a fixed-step solver, such as 'heun'")
        kept = Save.parse(how.save)
        if kept.steps or kept.attentions or how.penalties:
            problems.append("samples leave at different times, so nothing is kept on the way: no save, no penalties")
        if problems:
            raise ConfigError(f"stop={how.stop!r}", problems)
        assert isinstance(method, FixedStepSolver)
        steps = self.steps if how.steps is None else how.steps
        stop = make_stop(how.stop)
        return solve_until(self.field, x0, solver=method, steps=steps, t1=t1, stop=stop, read=how.read)
