"""x(t1) = x(t0) + int_{t0}^{t1} f(x, t) dt: the one verb."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn

from odevit.core.dynamics import Dynamics, Field
from odevit.core.grid import Grid, edges, grid_problem
from odevit.core.loop import FixedStepLoop, Recompute
from odevit.core.solution import SaveAt, Solution
from odevit.core.solver import FixedStepSolver, Solver, make_solver
from odevit.errors import ConfigError, integer
from odevit.solvers.adaptive import AdaptiveSolver
from odevit.solvers.adjoint import integrate_with_adjoint
from odevit.solvers.early_exit import ActiveBatch, Stop, make_stop, stop_problems
from odevit.solvers.penalties import Penalty
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
    save: SaveAt | str | Iterable[int] | None = None,
    penalties: Mapping[str, Penalty] | None = None,
    checkpoint: Recompute = False,
    adjoint: bool = False,
    stop: str | Stop | None = None,
    read: Callable[[Tensor], Logits] | None = None,
    grid: Grid = "uniform",
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
        checkpoint: recompute steps in the backward pass; memory grows with the logarithm of `steps`. A mapping has the
            options of torch's checkpoint.
        adjoint: integrate the adjoint equation for gradients (solver `dopri5`, needs torchdiffeq). Parameters get them
            when `field` is a module, which says what they are; a function that hides some is refused.
        stop: let every sample stop when it is done: "velocity", "kl", "bound" and others of `STOPS`, with a tolerance
            "kl:0.01", or a `Stop`; `steps` is then the most that a sample takes. Evaluation only, without gradient.
            `Solution.evaluations` and `stop_times` are per sample; `time` and `stats` are those of the last to stop.
        read: states to logits, for a `stop` that asks the head.
        grid: where fixed steps lie, see `GRIDS`; an adaptive solver has no use for it.
    """
    method, keep, costs = make_solver(solver), SaveAt.parse(save), dict(penalties or {})
    criterion = None if stop is None else make_stop(stop)
    name, fixed, stops = type(method).__name__, isinstance(method, FixedStepSolver), criterion is not None
    kept, training = keep.steps or keep.attentions or costs, isinstance(field, nn.Module) and field.training
    refusals = [
        (fixed and steps is None, f"{name} makes fixed steps and needs to know how many; pass steps=12, say"),
        (fixed and adjoint, "adjoint=True is for adaptive solvers; use checkpoint=True with a fixed-step solver"),
        (checkpoint and not fixed, "checkpoint=True is for fixed-step solvers; use adjoint=True with solver='dopri5'"),
        (costs and not fixed, "penalties are accumulated on a fixed grid; use a fixed-step solver such as 'heun'"),
        (stops and not fixed, f"stop= asks after every step, and {name} chooses its own; use fixed steps, say 'heun'"),
    ]
    problems = [] if steps is None else integer(1).problem("steps", steps)
    problems += [] if (problem := grid_problem(grid)) is None else [problem]
    problems += [sentence for refused, sentence in refusals if refused]
    problems += stop_problems(criterion, kept=bool(kept), training=training, headless=read is None)
    finite = abs(t0) < math.inf and abs(t1) < math.inf  # math.isfinite does not trace a time that torch.compile varies
    if not finite or t0 == t1:
        problems.append(f"t0={t0}, t1={t1}; expected finite times that differ")
    if not problems and fixed and isinstance(field, Field):
        problems = field.grid_problems(edges(grid, steps or 1, t0, t1))
    if problems:
        raise ConfigError("solve", problems)
    dynamics = dynamics_of(field, x0)

    if isinstance(method, FixedStepSolver):
        assert steps is not None  # refused above
        if criterion is None:
            return FixedStepLoop(dynamics, method, steps, t0, t1, keep, costs, checkpoint, None, grid).run(x0)
        with torch.no_grad():
            active = ActiveBatch(criterion, read, x0)
            return FixedStepLoop(dynamics, method, steps, t0, t1, keep, costs, False, active, grid).run(x0)
    assert isinstance(method, AdaptiveSolver)
    if adjoint:
        parameters = field.parameters() if isinstance(field, nn.Module) else None
        return integrate_with_adjoint(dynamics, x0, method, t0, t1, steps or 1, keep, parameters)
    return method.integrate(dynamics, x0, t0, t1, steps or 1, keep)


def dynamics_of(field: Equation, x0: Tensor) -> Dynamics:
    """The equation of the trajectory that starts at `x0`."""
    if isinstance(field, Dynamics):
        return field
    if isinstance(field, Field):
        return field.dynamics(x0)
    return Dynamics({"field": lambda x, t, _: field(x, t)}, anchor=x0)
