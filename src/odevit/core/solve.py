"""x(t1) = x(t0) + int_{t0}^{t1} f(x, t) dt: the loop, and the function that runs it.

Written by hand although libraries for ODEs exist: the loop has to compile, export, be captured in a CUDA graph and be
computed again in the backward pass, and splittings need the components of a field one by one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from torch import Tensor

from odevit.core.base import Dynamics, Field, FixedStepSolver, History, Solver
from odevit.core.solution import SaveAt, Solution, Stats
from odevit.core.solver_config import Grid, edges, grid_problem, make_solver
from odevit.errors import ConfigError, integer
from odevit.registry import Registry
from odevit.tokens import Logits

Equation = Field | Dynamics | Callable[[Tensor, float], Tensor]
"""What can be integrated: a field, the dynamics of a trajectory, or any function f(x, t) -> velocity."""
Recompute = bool | Mapping[str, Any]
"""Whether steps are computed again in the backward pass; or the options of torch's checkpoint for it."""
DRIVERS: Registry[type[Driver]] = Registry("driver")


class PlannedStep(NamedTuple):
    """Step n of a solve, from t to t + h: whether the solver restarts there, and how many evaluations it costs."""

    n: int
    t: float
    h: float
    restart: bool
    nfe: int


class StepRecord(NamedTuple):
    """A step that was made. `dynamics` is the equation that held in it."""

    dynamics: Dynamics
    n: int
    t: float
    h: float
    before: Tensor
    after: Tensor


Fold = Callable[[Any, StepRecord], Any]
"""(what was gathered, step) -> what is gathered. Pure, so that a step may be computed again."""


def integrate(
    solver: FixedStepSolver,
    dynamics: Dynamics,
    x: Tensor,
    plan: Iterable[PlannedStep],
    fold: Fold | None = None,
    gathered: Any = (),
    history: History = (),
) -> tuple[Tensor, Any, History]:
    """x_{n+1} = step(x_n): the loop. Everything else runs it, or parts of it."""
    for n, t, h, restart, _ in plan:
        here, before = dynamics.for_step(t, t + h), x
        after, history = solver.advance(here, x, t, h, () if restart else history)
        x = after.to(x.dtype)
        if fold is not None:
            gathered = fold(gathered, StepRecord(here, n, t, h, before, x))
    return x, gathered, history


def plan_steps(solver: FixedStepSolver, dynamics: Dynamics, times: Sequence[float], grid: Grid) -> list[PlannedStep]:
    """The steps between `times`. A multistep solver restarts at the first and wherever the velocity has a kink."""
    lengths = [late - early for early, late in pairwise(times)]
    if grid == "uniform":  # equal to the last bit
        lengths = [(times[-1] - times[0]) / len(lengths)] * len(lengths)
    middles = [(early + late) / 2 for early, late in pairwise(times)]
    kinks = [True, *(solver.restart > 0 and dynamics.has_kink(a, b) for a, b in pairwise(middles))]
    cost = solver.evaluations(len(dynamics.components))
    return [
        PlannedStep(n, t, h, kinks[n], 0 if dynamics.is_static(t, times[n + 1]) else cost + solver.restart * kinks[n])
        for n, (t, h) in enumerate(zip(times, lengths, strict=False))
    ]


@dataclass(frozen=True)
class Problem:
    """What is to be solved: dx/dt = dynamics(x, t), x(t0) = x0, at `times` from t0 to t1."""

    field: Equation
    x0: Tensor
    solver: Solver
    times: Sequence[float]
    grid: Grid

    def start(self) -> Dynamics:
        """The equation of the trajectory that starts at `x0`, with its dropout masks drawn; to be called once."""
        return dynamics_of(self.field, self.x0)


@dataclass(frozen=True)
class Driver(ABC):
    """Solves a problem with options that the plain loop does not have; these are the options of `solve`."""

    save: SaveAt
    penalties: Mapping[str, Any]
    checkpoint: Recompute
    _: KW_ONLY
    adjoint: bool
    stop: Any
    readout: Callable[[Tensor], Logits] | None

    @abstractmethod
    def problems(self, problem: Problem) -> list[str]:
        """Why the options are not possible for this problem, as sentences."""

    @abstractmethod
    def run(self, problem: Problem) -> Solution:
        """The solution, with what the options ask for."""


def solve(
    field: Equation,
    x0: Tensor,
    *,
    solver: str | Solver = "heun",
    steps: int | None = None,
    t0: float = 0.0,
    t1: float = 1.0,
    grid: Grid = "uniform",
    save: SaveAt | str | Iterable[int] | None = None,
    penalties: Mapping[str, Any] | None = None,
    checkpoint: Recompute = False,
    adjoint: bool = False,
    stop: Any = None,
    readout: Callable[[Tensor], Logits] | None = None,
) -> Solution:
    """x(t1) = x(t0) + int_{t0}^{t1} f(x, t) dt.

    Args:
        field: a `Field`, the `Dynamics` of a trajectory, or any function f(x, t) -> velocity.
        x0: the state at t0; of any shape that the field accepts.
        solver: a name (see `SOLVERS`) or a solver object.
        steps: how many steps are made; N means N. An adaptive solver makes as many as it needs, and `steps` (then 1
            unless given) is the number of equal parts of the time that `save` counts.
        t0, t1: the times of the start and the end, as Python floats. t1 < t0 integrates backwards.
        grid: where fixed steps are, see `GRIDS`; an adaptive solver ignores it.
        save: what to keep besides the final state: "all", a sequence of step numbers, or a `SaveAt`.
        penalties: costs to accumulate along the trajectory, by name.
        checkpoint: recompute steps in the backward pass; memory grows with the logarithm of `steps`. A mapping has the
            options of torch's checkpoint.
        adjoint: integrate the adjoint equation for gradients (solver `dopri5`, needs torchdiffeq). Parameters get them
            when `field` is a module; a function with hidden parameters is refused.
        stop: stop each sample when it is done: "velocity", "kl", "bound" and others of `STOPS`, with a tolerance
            "kl:0.01", or a `Stop`; `steps` is then the most that a sample takes. Evaluation only, without gradient.
            `Solution.evaluations` and `stop_times` are per sample; `time` and `stats` are those of the last to stop.
        readout: states to logits, for a `stop` that looks at them.
    """
    method = make_solver(solver)
    fixed = isinstance(method, FixedStepSolver)
    driver: Driver | None = None
    if adjoint or stop is not None or not fixed or checkpoint or penalties or save is not None:
        name = "early_exit" if stop is not None else "adjoint" if adjoint else "recording" if fixed else "adaptive"
        driver = DRIVERS[name](
            SaveAt.parse(save), dict(penalties or {}), checkpoint, adjoint=adjoint, stop=stop, readout=readout
        )
    valid = steps is None or (isinstance(steps, int) and not isinstance(steps, bool) and steps >= 1)
    problems = [] if valid else integer(1).problem("steps", steps)
    if grid != "uniform" and (wrong := grid_problem(grid)):
        problems.append(wrong)
    if fixed and steps is None:
        problems.append(f"{type(method).__name__} makes fixed steps and needs to know how many; pass steps=12, say")
    if not (abs(t0) < math.inf and abs(t1) < math.inf) or t0 == t1:  # math.isfinite does not trace a symbolic time
        problems.append(f"t0={t0}, t1={t1}; expected finite times that differ")
    problem = Problem(field, x0, method, () if problems else edges(grid, steps or 1, t0, t1), grid)
    problems += [] if driver is None else driver.problems(problem)
    if not problems and fixed and isinstance(field, Field):
        problems = field.grid_problems(problem.times)
    if problems:
        raise ConfigError("solve", problems)
    if driver is not None:
        return driver.run(problem)
    assert isinstance(method, FixedStepSolver)  # others have a driver
    dynamics = dynamics_of(field, x0)
    plan = plan_steps(method, dynamics, problem.times, grid)
    state, _, _ = integrate(method, dynamics, x0, plan)
    return Solution(state, t1, Stats(nfe=sum(step.nfe for step in plan), steps=len(plan)))


def dynamics_of(field: Equation, x0: Tensor) -> Dynamics:
    """The equation of the trajectory that starts at `x0`."""
    if isinstance(field, Dynamics):
        return field
    if isinstance(field, Field):
        return field.dynamics(x0)
    return Dynamics({"field": lambda x, t, _: field(x, t)}, anchor=x0)
