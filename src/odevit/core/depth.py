"""x(T) = depth(x(0)): what depth means."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar

from torch import nn

from odevit.core.dynamics import Field
from odevit.core.loop import Recompute
from odevit.core.solution import SaveAt, Solution
from odevit.core.solver import Solver
from odevit.core.solver_config import SolverConfig
from odevit.errors import ConfigError, Expected, option_problems, shortened
from odevit.registry import Registry
from odevit.solvers.early_exit import Stop
from odevit.solvers.penalties import Penalty
from odevit.tokens import Logits, TokenLayout, Tokens

DEPTHS: Registry[type[Depth]] = Registry("depth")


class Depth(nn.Module, ABC):
    """x(T) = depth(x(0)). A new meaning of depth is one file with one subclass and one registry line.

    What others need to know of it, it says itself: whether it can be trained, whether it has a trajectory, whether it
    can stand in for another depth, and how it is described. Nobody asks for its name.

    Args:
        make_field: makes one field; a depth calls it once for every different field that it has.
        way: how it integrates unless told otherwise; `way.steps` is also the number of layers of a stack.

    What only this meaning of depth knows are further keyword arguments, with defaults and with `rules`. A configuration
    keeps those that are given under `depth_options`.
    """

    rules: ClassVar[Mapping[str, Expected]] = {}
    """Its options, and what each should be."""

    trainable: ClassVar[bool] = True
    """Whether there is a gradient through it."""
    has_trajectory: ClassVar[bool] = False
    """Whether it follows x(t) of one field, which can be integrated in any way, read anywhere and analysed."""
    shares_field: ClassVar[bool] = False
    """Whether it has one field, around which other depths that have one can take its place."""
    fixed_graph: bool = True
    """Whether training computes the same for every batch of a shape, so that a captured step can be replayed."""
    layout: TokenLayout | None = None
    """Where the tokens of an image of the model's own size stand, once it was told."""

    field: Field

    def __init__(self, make_field: Callable[[], Field], solver_config: SolverConfig) -> None:
        super().__init__()
        self.solver_config = solver_config
        # Set by Hugging Face's gradient_checkpointing_enable(), and the second with its options.
        self.gradient_checkpointing = False
        self._gradient_checkpointing_func: partial[Any] | None = None

    @property
    def recompute(self) -> Recompute:
        """Whether steps are computed again in the backward pass; the options for that, where there are any."""
        if not (self.gradient_checkpointing and self.training):
            return False
        return True if self._gradient_checkpointing_func is None else self._gradient_checkpointing_func.keywords or True

    @abstractmethod
    def forward(
        self,
        x0: Tokens,
        solver_config: SolverConfig | None = None,
        *,
        save: SaveAt | str | Iterable[int] | None = None,
        penalties: Mapping[str, Penalty] | None = None,
        adjoint: bool = False,
        stop: str | Stop | None = None,
        read: Callable[[Tokens], Logits] | None = None,
    ) -> Solution:
        """Carry the embedded image from 0 to T, in the depth's own way or another; the options are those of `solve`."""

    def set_layout(self, layout: TokenLayout) -> None:
        """Hear where the tokens of an image of the model's own size stand; a subclass refuses what it cannot use."""
        self.layout = layout

    def begin(self) -> None:
        """Set the first values of its own parameters, once those of its parts are set.

        Only with transformers' initialisers, which leave alone what came from a checkpoint.
        """

    @classmethod
    def option_problems(cls, options: Mapping[str, Any]) -> list[str]:
        """What is wrong with its options, as sentences; a subclass adds what is wrong with several together."""
        return option_problems("depth_options", options, cls.rules, "this depth")

    @abstractmethod
    def describe(self) -> str:
        """What it computes, in a few words or a formula."""

    def resolve(self, solver: str | Solver | None, steps: int | None, horizon: float | None) -> SolverConfig | None:
        """The depth's own way except for what is given; None when nothing is."""
        given = solver is not None or steps is not None or horizon is not None
        return self.solver_config.replace(solver, steps, horizon) if given else None

    def export_problem(self, solver_config: SolverConfig) -> str | None:
        """Why it has no fixed graph to export, as a sentence; None when it has one."""
        return None

    def as_depth(self, name: str | None) -> Depth:
        """Another meaning of depth around the same field: no copy, and no second owner of its weights."""
        other = type(self) if name is None else DEPTHS[name]
        if other is type(self):
            return self
        if problem := self.other_problem(other):
            raise ValueError(f"depth={name!r} was asked of a {type(self).__name__}, {problem}")
        field = self.field
        return other(lambda: field, self.solver_config)

    @property
    def own_weights(self) -> list[str]:
        """The weights that only this meaning of depth knows what to do with: around another they would be lost."""
        names = [name for name, _ in self.named_parameters() if not name.startswith("field.")]
        return sorted({".".join(name.split(".")[:2]) for name in names})

    def other_problem(self, other: type[Depth]) -> str | None:
        """Why another meaning of depth cannot take its place, as the end of a sentence; None when it can."""
        if not (self.shares_field and other.shares_field):
            able = ", ".join(repr(known) for known, kind in DEPTHS.items() if kind.shares_field)
            return f"and they share no field; only these can take each other's place: {able}"
        if other is not type(self) and (own := self.own_weights):
            return (
                f"whose weights are not those of one field alone ({shortened(own)}); it can only be what it was "
                "trained as"
            )
        return None


def refuse(subject: str, problems: Iterable[str]) -> None:
    """Raise everything that a depth cannot do, if there is anything."""
    if listed := list(problems):
        raise ConfigError(subject, listed)
