"""x(0) -> x(T) in N steps of a solver: one way to integrate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from odevit.core.grid import Grid, edges, grid_problem
from odevit.core.solver import SOLVERS, FixedStepSolver, Solver, make_solver
from odevit.errors import DURATION, ConfigError, integer, validate

MOST_STEPS = 10_000
"""The longest way that a model, a recipe or a command takes: a thousand times what models are trained with.

One zero too many would otherwise look like a program that hangs. `solve` itself makes as many steps as it is asked for.
"""


@dataclass(frozen=True)
class SolverConfig:
    """x(0) -> x(T) in N steps of a solver, each h = T / N long unless a grid says otherwise.

    A model has its own way, a recipe draws ways, a sweep lists them, and a `Solution` says which one it took.

    Args:
        solver: a name (see `SOLVERS`) or a solver object.
        steps: N, at most `MOST_STEPS`. An adaptive solver chooses its own steps; N then says into how many parts `save`
            divides the horizon.
        horizon: T, the length of the trajectory.
        grid: where the steps lie, see `GRIDS`: a name, or shares of T from 0 to 1.
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
            raise ConfigError("the way to integrate", problems)

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
        """The same way, except for what is given; its own solver, by name, is as it is: with its tolerance."""
        given = {"solver": None if solver == self.name else solver, "steps": steps, "horizon": horizon, "grid": grid}
        return replace(self, **{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]

    def times(self, factor: float) -> SolverConfig:
        """The same steps carried on, or cut short, to `factor` horizons: as many as come nearest to it.

        A grid that is not uniform is stretched over them.
        """
        steps = max(1, round(factor * self.steps))
        return self if steps == self.steps else replace(self, steps=steps, horizon=self.horizon * steps / self.steps)

    def numbers(self) -> dict[str, Any]:
        """What goes into a file: names and numbers."""
        numbers = {"solver": self.name, "steps": self.steps, "horizon": self.horizon}
        return numbers if self.grid == "uniform" else {**numbers, "grid": self.grid}

    def __str__(self) -> str:
        grid = self.grid if isinstance(self.grid, str) else f"{len(self.grid)} times"
        return f"{self.name}, {self.steps} steps, T = {self.horizon:g}" + ("" if grid == "uniform" else f", {grid}")
