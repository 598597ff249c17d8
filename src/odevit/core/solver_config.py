"""x(0) -> x(T) in N steps of a solver: how to integrate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from odevit.core.base import HOOKS, SOLVERS, FixedStepSolver, Solver
from odevit.errors import DURATION, ConfigError, integer, validate

MOST_STEPS = 10_000
"""The most steps that a model, a recipe or a command accepts, a thousand times what models are trained with.

With one zero too many a program would seem to hang. `solve` itself has no limit.
"""
Grid = str | tuple[float, ...]
"""g: "uniform", "geometric:10", or shares of the horizon from 0 to 1, see `odevit.solvers.grids`."""


@dataclass(frozen=True)
class SolverConfig:
    """x(0) -> x(T) in N steps of a solver, each h = T / N long unless a grid says otherwise.

    A model has one, recipes draw them, sweeps list them, and a `Solution` names the one it used.

    Args:
        solver: a name (see `SOLVERS`) or a solver object.
        steps: N, at most `MOST_STEPS`. For an adaptive solver, into how many parts `save` divides the horizon.
        horizon: T, the length of the trajectory.
        grid: where the steps are: t_n = T g(n / N), see `odevit.solvers.grids`.
    """

    solver: str | Solver
    steps: int
    horizon: float
    grid: Grid = "uniform"

    def __post_init__(self) -> None:
        problems = validate(self, {"steps": integer(1, MOST_STEPS), "horizon": DURATION})
        if not isinstance(self.solver, Solver) and (problem := SOLVERS.problem(self.solver)):
            problems.append(problem)
        if problem := grid_problem(self.grid):
            problems.append(problem)
        if problems:
            raise ConfigError("SolverConfig", problems)

    @property
    def step(self) -> float:
        """h = T / N, the mean length of a step."""
        return self.horizon / self.steps

    @property
    def edges(self) -> list[float]:
        """The times between which its steps lie, from 0 to T."""
        return edges(self.grid, self.steps, 0.0, float(self.horizon))

    @property
    def method(self) -> Solver:
        """The solver as an object."""
        return make_solver(self.solver)

    @property
    def name(self) -> str:
        return self.solver if isinstance(self.solver, str) else SOLVERS.name_of(type(self.solver))

    @property
    def is_fixed(self) -> bool:
        """Whether the steps are known beforehand."""
        return isinstance(self.method, FixedStepSolver)

    def replace(
        self,
        solver: str | Solver | None = None,
        steps: int | None = None,
        horizon: float | None = None,
        grid: Grid | None = None,
    ) -> SolverConfig:
        """The same except for what is given. The name of its own solver leaves that solver, with its tolerance."""
        given = {"solver": None if solver == self.name else solver, "steps": steps, "horizon": horizon, "grid": grid}
        return replace(self, **{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]

    def stretched(self, factor: float) -> SolverConfig:
        """Steps of the same length to `factor` times the horizon, as near as whole steps come to it."""
        steps = max(1, round(factor * self.steps))
        return self if steps == self.steps else replace(self, steps=steps, horizon=self.horizon * steps / self.steps)

    def to_dict(self) -> dict[str, Any]:
        """Names and numbers, for a file."""
        values = {"solver": self.name, "steps": self.steps, "horizon": self.horizon}
        return values if self.grid == "uniform" else {**values, "grid": self.grid}

    def __str__(self) -> str:
        grid = self.grid if isinstance(self.grid, str) else f"{len(self.grid)} times"
        return f"{self.name}, {self.steps} steps, T = {self.horizon:g}" + ("" if grid == "uniform" else f", {grid}")


def make_solver(solver: str | Solver) -> Solver:
    """A solver from its name, with its defaults; a solver object is returned as it is."""
    return solver if isinstance(solver, Solver) else SOLVERS[solver]()


def edges(grid: Grid, steps: int, t0: float, t1: float) -> list[float]:
    """t_n = t0 + (t1 - t0) g(n / N), n = 0, ..., N; they begin at t0 and end at t1 exactly."""
    if grid == "uniform":
        return [t0 + (t1 - t0) * n / steps for n in range(steps + 1)]
    shares = HOOKS["grid_shares"](grid, steps)
    return [t0, *(t0 + (t1 - t0) * share for share in shares[1:-1]), t1]


def grid_problem(grid: object) -> str | None:
    """What is wrong with a grid, as a sentence; None when nothing is."""
    return None if grid == "uniform" else HOOKS["grid_problem"](grid)
