"""x(T) = depth(x(0)): what depth means."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from torch import nn

from odevit.field.dynamics import Field
from odevit.registry import Registry
from odevit.shapes import Logits, Tokens
from odevit.solver import Penalty, Save, Solution, Solver, Stop

DEPTHS: Registry[type[Depth]] = Registry("depth")


@dataclass(frozen=True)
class Integration:
    """How to integrate this time. What is None is as the model has it.

    Args:
        solver, steps, horizon: the method, N and T.
        save: what to keep: "all", step numbers, or a `Save`.
        penalties: costs to accumulate along the way, by name.
        adjoint: gradients by the adjoint equation.
        stop: when each sample has gone far enough, by name or as a `Stop`; None goes to the horizon.
        read: states to logits, for a `stop` that asks the head.
    """

    solver: str | Solver | None = None
    steps: int | None = None
    horizon: float | None = None
    save: Save | str | Iterable[int] | None = None
    penalties: Mapping[str, Penalty] | None = None
    adjoint: bool = False
    stop: str | Stop | None = None
    read: Callable[[Tokens], Logits] | None = None


AS_CONFIGURED = Integration()


class Depth(nn.Module, ABC):
    """x(T) = depth(x(0)). A new meaning of depth is one file with one subclass and one registry line.

    Args:
        make_field: makes one field; a depth calls it as often as it has different fields.
        solver: the name of the solver that steps are made with.
        steps: number of steps, or of layers.
        horizon: T, the length of the trajectory.
    """

    def __init__(self, make_field: Callable[[], Field], *, solver: str, steps: int, horizon: float) -> None:
        super().__init__()
        self.solver = solver
        self.steps = steps
        self.horizon = horizon
        # Set by Hugging Face's gradient_checkpointing_enable().
        self.gradient_checkpointing = False

    def seen_as(self, name: str) -> Depth:
        """Another meaning of depth around the same field: no copy, and no second owner of its weights."""
        if DEPTHS[name] is type(self):
            return self
        field = getattr(self, "field", None)
        if field is None or name == "stacked":
            raise ValueError(
                f"depth={name!r} was asked of a {type(self).__name__}, and they share no field; "
                "'ode' and 'equilibrium' can take each other's place"
            )
        return DEPTHS[name](lambda: field, solver=self.solver, steps=self.steps, horizon=self.horizon)

    @abstractmethod
    def forward(self, x0: Tokens, how: Integration = AS_CONFIGURED) -> Solution:
        """Carry the tokens from 0 to T."""
