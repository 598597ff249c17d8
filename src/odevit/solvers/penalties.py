"""R = 1/T int_0^T r(x, x', P) dt + q(x(T)): costs of a trajectory, summed while it is integrated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from odevit.core.base import Dynamics
from odevit.registry import Registry
from odevit.tokens import AttentionMap

PENALTIES: Registry[type[Penalty]] = Registry("penalty")


@dataclass(frozen=True)
class Step:
    """A step from t to t + h, with its gradient: the argument of a penalty."""

    dynamics: Dynamics
    t: float
    h: float
    before: Tensor
    after: Tensor
    attentions: tuple[AttentionMap, ...]

    @property
    def velocity(self) -> Tensor:
        """(x_{n+1} - x_n) / h, the mean velocity over the step."""
        return (self.after - self.before) / self.h


class Penalty:
    """1/T int r dt + q(x(T)): a subclass defines the running cost r, the terminal cost q, or both.

    A new penalty is a dataclass in one file with `@PENALTIES.register(name)`; its fields become options of the recipes.
    """

    needs_attentions: ClassVar[bool] = False
    """Whether it uses attention maps, which the fused kernel does not return."""
    draws_noise: ClassVar[bool] = False
    """Whether its running cost draws random numbers; a recomputed step then restores the random state."""
    fixed_options: ClassVar[tuple[str, ...]] = ()
    """Options that recipes do not have."""

    def running(self, step: Step) -> Tensor:
        """r: the cost of a step per unit of time. The loop takes the mean over time."""
        raise NotImplementedError(f"{type(self).__name__} has no running cost")

    def terminal(self, dynamics: Dynamics, state: Tensor, t: float) -> Tensor:
        """q: the cost of the final state, at time t."""
        raise NotImplementedError(f"{type(self).__name__} has no terminal cost")

    @classmethod
    def is_running(cls) -> bool:
        """Whether it has a running cost."""
        return cls.running is not Penalty.running

    @classmethod
    def is_terminal(cls) -> bool:
        """Whether it has a terminal cost, which needs a field to evaluate at the end."""
        return cls.terminal is not Penalty.terminal
