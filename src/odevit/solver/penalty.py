"""R = 1/T int_0^T r(x, x', P) dt: costs of a trajectory, added up while it is integrated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from odevit.field.dynamics import Dynamics
from odevit.shapes import AttentionMap


@dataclass(frozen=True)
class Step:
    """One step as a penalty sees it, with gradient. Gone when the next one begins.

    Args:
        dynamics: the equation.
        t, h: when it began and how long it was.
        before, after: the states at its two ends.
        attentions: the maps that were made on the way.
        left: how many steps are still to come.
        steps: how many there are in all.
    """

    dynamics: Dynamics
    t: float
    h: float
    before: Tensor
    after: Tensor
    attentions: tuple[AttentionMap, ...]
    left: int
    steps: int

    @property
    def velocity(self) -> Tensor:
        """(x_{n+1} - x_n) / h, the mean velocity over the step."""
        return (self.after - self.before) / self.h


class Penalty(ABC):
    """r(step), a scalar. The loop adds h r / T, so a penalty does not depend on the number of steps."""

    needs_attentions: bool = False
    """Whether it looks at attention maps; they cost the fused kernel, so they are made only when needed."""

    @abstractmethod
    def __call__(self, step: Step) -> Tensor:
        """The cost of one step, per unit of time."""
