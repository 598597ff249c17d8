"""x_{n+1} = step(x_n, t_n, h): the contract of a solver."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor

from odevit.core.dynamics import Dynamics
from odevit.registry import Registry

History = tuple[tuple[float, Tensor], ...]
"""Slopes of earlier steps and their times, the newest first."""

SOLVERS: Registry[type[Solver]] = Registry("solver")


class Solver(ABC):
    """A stateless object that knows how to make one step. Time is Python floats; the state keeps its dtype."""

    order: ClassVar[int]
    """p, when the error of the whole solution falls like h^p."""


class FixedStepSolver(Solver):
    """x_{n+1} = step(x_n): steps of a size chosen beforehand. This path compiles, exports and checkpoints."""

    rests_with_equation: ClassVar[bool] = True
    """Whether step(x) = x exactly where f(x) = 0, however long the step. A splitting rests a little beside it."""

    restart: ClassVar[int] = 0
    """How many evaluations a step without a past makes more than one with it, for a method that has memory."""

    @abstractmethod
    def step(self, dynamics: Dynamics, x: Tensor, t: float, h: float) -> Tensor:
        """The state at t + h, given the state `x` at t."""

    def advance(
        self, dynamics: Dynamics, x: Tensor, t: float, h: float, history: History = ()
    ) -> tuple[Tensor, History]:
        """The state at t + h, and what the next step may use of this one: nothing, unless the method has memory.

        A solver keeps nothing itself: steps that are computed again are handed the past that they had.
        """
        return self.step(dynamics, x, t, h), ()

    @abstractmethod
    def evaluations(self, components: int) -> int:
        """How many times one step evaluates the component that it evaluates most often."""


def make_solver(solver: str | Solver) -> Solver:
    """A solver from its name, with its defaults; a solver object is passed through."""
    return solver if isinstance(solver, Solver) else SOLVERS[solver]()
