"""x(t1) = x(t0) + int_{t0}^{t1} f(x, t) dt: the one verb."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from torch import Tensor

from odevit.errors import ConfigError
from odevit.field.dynamics import Dynamics, Field
from odevit.solver.adaptive import AdaptiveSolver
from odevit.solver.adjoint import integrate_with_adjoint
from odevit.solver.base import FixedStepSolver, Solver, make_solver
from odevit.solver.fixed import FixedStepLoop
from odevit.solver.penalty import Penalty
from odevit.solver.save import Save
from odevit.solver.solution import Solution


def solve(
    field: Field | Dynamics | Callable[[Tensor, float], Tensor],
    x0: Tensor,
    *,
    solver: str | Solver = "heun",
    steps: int | None = None,
    t0: float = 0.0,
    t1: float = 1.0,
    save: Save | str | Iterable[int] | None = None,
    penalties: Mapping[str, Penalty] | None = None,
    checkpoint: bool = False,
    adjoint: bool = False,
) -> Solution:
    """x(t1) = x(t0) + int_{t0}^{t1} f(x, t) dt.

    Args:
        field: a `Field`, the `Dynamics` of a trajectory, or any function f(x, t) -> velocity.
        x0: the state at t0; of any shape when the field takes it.
        solver: a name (see `SOLVERS`) or a solver object.
        steps: how many steps are made; N means N. An adaptive solver makes as many as it needs, and `steps` (then 1
            unless given) says into how many equal parts `save` divides the way.
        t0, t1: the times of the start and the end, as Python floats. t1 < t0 integrates backwards.
        save: what to keep besides the final state: "all", a sequence of step numbers, or a `Save`.
        penalties: costs to accumulate along the way, by name.
        checkpoint: recompute steps in the backward pass; memory grows with the logarithm of `steps`.
        adjoint: integrate the adjoint equation for gradients (adaptive solvers, needs torchdiffeq).

    Returns:
        A `Solution`; its `status` says how it went.
    """
    method = make_solver(solver)
    keep = Save.parse(save)
    costs = dict(penalties or {})
    _check(method, steps, t0, t1, checkpoint, adjoint, bool(costs))
    dynamics = dynamics_of(field, x0)

    if isinstance(method, FixedStepSolver):
        assert steps is not None  # _check has seen to it
        loop = FixedStepLoop(dynamics, method, steps, t0, t1, keep, costs, checkpoint)
        return loop.run(x0)
    assert isinstance(method, AdaptiveSolver)
    if adjoint:
        parameters = field.parameters() if isinstance(field, Field) else ()
        return integrate_with_adjoint(dynamics, x0, method, t0, t1, steps or 1, keep, parameters)
    return method.integrate(dynamics, x0, t0, t1, steps or 1, keep)


def dynamics_of(field: Field | Dynamics | Callable[[Tensor, float], Tensor], x0: Tensor) -> Dynamics:
    if isinstance(field, Dynamics):
        return field
    if isinstance(field, Field):
        return field.dynamics(x0)
    return Dynamics({"field": lambda x, t, _: field(x, t)}, anchor=x0)


def _check(
    solver: Solver, steps: int | None, t0: float, t1: float, checkpoint: bool, adjoint: bool, penalised: bool
) -> None:
    """All that is wrong with the arguments, together."""
    problems = []
    fixed = isinstance(solver, FixedStepSolver)
    if fixed and steps is None:
        problems.append(f"{type(solver).__name__} makes fixed steps and needs to know how many; pass steps=12, say")
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps < 1):
        problems.append(f"steps={steps!r}; expected a whole number, at least 1")
    if not (math.isfinite(t0) and math.isfinite(t1)):
        problems.append(f"t0={t0}, t1={t1}; expected finite times")
    elif t0 == t1:
        problems.append(f"t0 and t1 are both {t0}; expected two different times")
    if fixed and adjoint:
        problems.append("adjoint=True is for adaptive solvers; use checkpoint=True with a fixed-step solver")
    if not fixed and checkpoint:
        problems.append("checkpoint=True is for fixed-step solvers; use adjoint=True with solver='dopri5'")
    if not fixed and penalised:
        problems.append("penalties are accumulated on a fixed grid; use a fixed-step solver such as 'heun'")
    if problems:
        raise ConfigError("solve", problems)
