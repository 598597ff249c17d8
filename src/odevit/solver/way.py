"""x(0) -> x(T) in N steps of a solver: one way to integrate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from odevit.errors import DURATION, ConfigError, broken, whole
from odevit.solver.method import SOLVERS, FixedStepSolver, Solver, make_solver


@dataclass(frozen=True)
class Way:
    """x(0) -> x(T) in N steps of a solver, each h = T / N long.

    A model has its own way, a recipe draws ways, a sweep lists them, and a `Solution` says which one it took.

    Args:
        solver: a name (see `SOLVERS`) or a solver object.
        steps: N. An adaptive solver chooses its own steps; N then says into how many parts `save` divides the horizon.
        horizon: T, the length of the trajectory.
    """

    solver: str | Solver
    steps: int
    horizon: float

    def __post_init__(self) -> None:
        problems = broken(self, {"steps": whole(1), "horizon": DURATION})
        if not isinstance(self.solver, Solver) and (problem := SOLVERS.problem(self.solver)):
            problems.append(problem)
        if problems:
            raise ConfigError("the way to integrate", problems)

    @property
    def step(self) -> float:
        """h = T / N."""
        return self.horizon / self.steps

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

    def but(self, solver: str | Solver | None = None, steps: int | None = None, horizon: float | None = None) -> Way:
        """The same way, except for what is given."""
        given = {"solver": solver, "steps": steps, "horizon": horizon}
        return replace(self, **{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]

    def times(self, factor: float) -> Way:
        """The same steps carried on, or cut short, to `factor` horizons: as many as come nearest to it."""
        steps = max(1, round(factor * self.steps))
        return self if steps == self.steps else Way(self.solver, steps, self.horizon * steps / self.steps)

    def numbers(self) -> dict[str, Any]:
        """What goes into a file: names and numbers."""
        return {"solver": self.name, "steps": self.steps, "horizon": self.horizon}

    def __str__(self) -> str:
        return f"{self.name}, {self.steps} steps, T = {self.horizon:g}"
