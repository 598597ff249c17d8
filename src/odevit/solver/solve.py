"""x(t1) = x(t0) + int_{t0}^{t1} f(x, t) dt: the one verb."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn

from odevit.errors import ConfigError, whole
from odevit.field.dynamics import Dynamics, Field
from odevit.solver.adaptive import AdaptiveSolver
from odevit.solver.adjoint import integrate_with_adjoint
from odevit.solver.loop import FixedStepLoop
from odevit.solver.method import FixedStepSolver, Solver, make_solver
from odevit.solver.penalty import Penalty
from odevit.solver.solution import Save, Solution
from odevit.solver.stop import Stop, make_stop
from odevit.tokens import Logits

Equation = Field | Dynamics | Callable[[Tensor, float], Tensor]
"""What can be integrated: a field, the dynamics of a trajectory, or any function f(x, t) -> velocity."""


def solve(
    field: Equation,
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
    stop: str | Stop | None = None,
    read: Callable[[Tensor], Logits] | None = None,
) -> Solution:
    """x(t1) = x(t0) + int_{t0}^{t1} f(x, t) dt.

    Args:
        field: a `Field`, the `Dynamics` of a trajectory, or any function f(x, t) -> velocity.
        x0: the state at t0; of any shape that the field accepts.
        solver: a name (see `SOLVERS`) or a solver object.
        steps: how many steps are made; N means N. An adaptive solver makes as many as it needs, and `steps` (then 1
            unless given) says into how many equal parts `save` divides the time.
        t0, t1: the times of the start and the end, as Python floats. t1 < t0 integrates backwards.
        save: what to keep besides the final state: "all", a sequence of step numbers, or a `Save`.
        penalties: costs to accumulate along the way, by name.
        checkpoint: recompute steps in the backward pass; memory grows with the logarithm of `steps`.
        adjoint: integrate the adjoint equation for gradients (adaptive solvers, needs torchdiffeq).
        stop: let every sample stop when it is done, by name ("kl", "kl:0.01") or as a `Stop`; `steps` is then the most
            that a sample takes. Without gradient. `Solution.evaluations` and `stop_times` are per sample; `time` and
            `stats` are those of the last one to stop.
        read: states to logits, for a `stop` that asks the head.

    Returns:
        A `Solution`; its `status` says how it went.
    """
    method, keep, costs = make_solver(solver), Save.parse(save), dict(penalties or {})
    criterion = None if stop is None else make_stop(stop)
    problems = _problems(method, steps, t0, t1, checkpoint, adjoint, bool(costs))
    if criterion is not None:
        problems += _stop_problems(criterion, field, method, keep, bool(costs), read is not None)
    if problems:
        raise ConfigError("solve", problems)
    dynamics = dynamics_of(field, x0)

    if isinstance(method, FixedStepSolver):
        assert steps is not None  # _problems has seen to it
        loop = FixedStepLoop(dynamics, method, steps, t0, t1, keep, costs, checkpoint, criterion, read)
        if criterion is None:
            return loop.run(x0)
        with torch.no_grad():
            return loop.run(x0)
    assert isinstance(method, AdaptiveSolver)
    if adjoint:
        parameters = field.parameters() if isinstance(field, Field) else ()
        return integrate_with_adjoint(dynamics, x0, method, t0, t1, steps or 1, keep, parameters)
    return method.integrate(dynamics, x0, t0, t1, steps or 1, keep)


def dynamics_of(field: Equation, x0: Tensor) -> Dynamics:
    """The equation of the trajectory that starts at `x0`."""
    if isinstance(field, Dynamics):
        return field
    if isinstance(field, Field):
        return field.dynamics(x0)
    return Dynamics({"field": lambda x, t, _: field(x, t)}, anchor=x0)


def _problems(
    solver: Solver, steps: int | None, t0: float, t1: float, checkpoint: bool, adjoint: bool, penalised: bool
) -> list[str]:
    """All that is wrong with the arguments, as sentences."""
    problems = []
    fixed = isinstance(solver, FixedStepSolver)
    if steps is not None:
        problems += whole(1).problem("steps", steps)
    elif fixed:
        problems.append(f"{type(solver).__name__} makes fixed steps and needs to know how many; pass steps=12, say")
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
    return problems


def _stop_problems(
    stop: Stop, field: Equation, solver: Solver, save: Save, penalised: bool, readable: bool
) -> list[str]:
    problems = []
    if not isinstance(solver, FixedStepSolver):
        problems.append(
            f"stop= asks after every step, and {type(solver).__name__} chooses its own; use a fixed-step solver, "
            "such as 'heun'"
        )
    if save.steps or save.attentions or penalised:
        problems.append(
            "with stop= samples leave at different times, so nothing is kept on the way: no save, no penalties"
        )
    if isinstance(field, nn.Module) and field.training:
        problems.append("stop= is for evaluation, where every sample stops on its own; call model.eval() first")
    if stop.needs_logits and not readable:
        problems.append(
            f"{type(stop).__name__} looks at logits, and there is no head to ask; use stop='velocity', or a model for "
            "classification"
        )
    return problems
