"""Field, Solver, Depth: the three contracts, and what passes between them.

field.dynamics(x0) -> Dynamics          the equation of one trajectory
solver.step(dynamics, x, t, h) -> x'    one step of it
depth(x0, request) -> Solution          all of it
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from odevit.errors import Expected, option_problems
from odevit.registry import Registry
from odevit.tokens import AttentionMap, Logits, TokenLayout, Tokens

if TYPE_CHECKING:
    from odevit.core.solution import SaveAt, Solution
    from odevit.core.solver_config import SolverConfig

SOLVERS: Registry[type[Solver]] = Registry("solver")
DEPTHS: Registry[type[Depth]] = Registry("depth")
FIELDS: Registry[Any] = Registry("field")
"""Kinds of fields: which configurations describe one, and how it is made, see `odevit.time_varying.builder`."""
HOOKS: Registry[Callable[..., Any]] = Registry("hook")
"""What the core calls and does not contain: loading, saving, image processors. `odevit.hf` registers it."""

AttentionHook = Callable[[AttentionMap], None]
"""Is called with every attention map as it is made, with its gradient."""
Component = Callable[[Tokens, float, AttentionHook | None], Tokens]
"""One term f_i(x, t) of the velocity. Always an increment, never the layer with its residual."""
History = tuple[tuple[float, Tensor], ...]
"""Slopes of earlier steps and their times, the newest first; empty for a solver without memory."""


@dataclass(frozen=True)
class Dynamics:
    """dx/dt = sum_i f_i(x, t) - leak (x - anchor), for one trajectory.

    A field makes its `Dynamics` when a trajectory starts: the starting point is known then, and the dropout masks of
    the trajectory are drawn. Runge-Kutta methods call it, splittings take its components one by one, and splittings and
    exponential methods solve its linear part exactly.

    Args:
        components: the terms f_i by name, in the order in which a splitting applies them.
        anchor: where the leak pulls to, the embedded image.
        leak: strength of the pull; 0 is the paper's equation.
        attention_hook: is called with every attention map; with a hook, attention is not fused.
    """

    components: Mapping[str, Component]
    anchor: Tensor
    leak: float = 0.0
    attention_hook: AttentionHook | None = None

    def component(self, name: str, x: Tensor, t: float) -> Tensor:
        """f_name(x, t)."""
        return self.components[name](x, t, self.attention_hook)

    def forcing(self, x: Tensor, t: float) -> Tensor:
        """sum_i f_i(x, t), the velocity without its linear part."""
        first, *others = self.components
        velocity = self.component(first, x, t)
        for name in others:
            velocity = velocity + self.component(name, x, t)
        return velocity

    def __call__(self, x: Tensor, t: float) -> Tensor:
        """dx/dt at (x, t)."""
        if self.leak == 0.0:
            return self.forcing(x, t)
        return torch.sub(self.forcing(x, t), x - self.anchor, alpha=self.leak)

    def relax(self, x: Tensor, h: float) -> Tensor:
        """anchor + e^{-leak h} (x - anchor), the exact flow of the linear part over a time h."""
        if self.leak == 0.0:
            return x
        return torch.lerp(self.anchor.to(x.dtype), x, math.exp(-self.leak * h))

    # A field whose weights change with time overrides these four, see `odevit.time_varying`.

    def for_step(self, t0: float, t1: float) -> Dynamics:
        """The equation to use in a step from t0 to t1: weights that jump must not jump within it."""
        return self

    def discontinuities(self, t0: float, t1: float) -> tuple[float, ...]:
        """The times between t0 and t1 at which the velocity jumps; adaptive solvers place a step on each."""
        return ()

    def has_kink(self, t0: float, t1: float) -> bool:
        """Whether the velocity is not smooth in time between t0 and t1; multistep methods restart there."""
        return False

    def is_static(self, t0: float, t1: float) -> bool:
        """Whether the velocity is known to be 0 between t0 and t1, so that steps cost no evaluation."""
        return False

    def add_term(self, term: Component) -> Dynamics:
        """The same equation with one more term, added to its last component: a splitting keeps its number of parts."""
        return replace(self, components=with_term(self.components, term))

    def with_anchor(self, anchor: Tensor) -> Dynamics:
        """The same equation with another anchor."""
        return replace(self, anchor=anchor)

    def with_attention_hook(self, hook: AttentionHook | None) -> Dynamics:
        """The same equation, its attention maps handed to `hook`."""
        return replace(self, attention_hook=hook)


def with_term(components: Mapping[str, Component], term: Component) -> dict[str, Component]:
    """f_1, ..., f_k + term."""
    *_, (last, component) = components.items()

    def both(x: Tensor, t: float, hook: AttentionHook | None) -> Tensor:
        return component(x, t, hook) + term(x, t, hook)

    return {**components, last: both}


class Field(nn.Module, ABC):
    """A module that moves tokens. It contains nothing about solvers, losses, teachers or plots."""

    dim: int
    """The width of its tokens."""
    autonomous_from: float = 0.0
    """The time from which on the velocity depends on the state alone: 0 for an autonomous field."""

    @abstractmethod
    def dynamics(self, x0: Tokens) -> Dynamics:
        """The equation of the trajectory that starts at `x0`, with its dropout masks drawn."""

    def at(self, t: float) -> Field:
        """The field with the weights that it has at time t."""
        return self

    def tie_knots(self) -> None:
        """Give equal first weights to all sets of weights; called once after initialisation."""

    def clear_cache(self) -> None:
        """Forget what was computed from the weights."""

    def describe(self) -> str:
        """The equation in one line."""
        return "dx/dt = f(x, t)"

    def grid_problems(self, edges: Sequence[float]) -> list[str]:
        """Why it cannot be integrated in steps between these times, as sentences."""
        return []

    def forward(self, x: Tokens, t: float = 0.0, x0: Tokens | None = None) -> Tokens:
        """dx/dt at (x, t); `x0` is the start of the trajectory, which only a field with a leak uses."""
        return self.dynamics(x if x0 is None else x0)(x, t)


class Solver(ABC):
    """A stateless object that integrates. Time is Python floats; the state keeps its dtype."""

    order: ClassVar[int]
    """p, when the error of the whole solution falls like h^p."""


class FixedStepSolver(Solver):
    """x_{n+1} = step(x_n): steps of a size chosen beforehand. This path compiles, exports and checkpoints."""

    rests_with_equation: ClassVar[bool] = True
    """Whether step(x) = x exactly where f(x) = 0, however long the step. A splitting has a fixed point beside it."""
    restart: ClassVar[int] = 0
    """How many evaluations a step without history makes more than one with it, for a multistep method."""

    @abstractmethod
    def step(self, dynamics: Dynamics, x: Tensor, t: float, h: float) -> Tensor:
        """The state at t + h, given the state `x` at t."""

    def advance(
        self, dynamics: Dynamics, x: Tensor, t: float, h: float, history: History = ()
    ) -> tuple[Tensor, History]:
        """The state at t + h, and what the next step may use. Pure, so that a step may be computed again."""
        return self.step(dynamics, x, t, h), ()

    @abstractmethod
    def evaluations(self, components: int) -> int:
        """How many times one step evaluates the component that it evaluates most often."""


@dataclass(frozen=True)
class Request:
    """What one call asks for beside its images. `solver_config` and `depth` decide what is computed and are hashable.

    Args:
        solver_config: solver, steps, horizon and grid; the model's own unless given.
        depth: another depth around the same field, by name.
        save, penalties, adjoint, stop: as for `solve`.
        readout: states to logits, for a `stop` that looks at them.
    """

    solver_config: SolverConfig | None = None
    depth: str | None = None
    save: SaveAt | str | Iterable[int] | None = field(default=None, compare=False)
    penalties: Mapping[str, Any] | None = field(default=None, compare=False)
    adjoint: bool = False
    stop: Any = field(default=None, compare=False)
    readout: Callable[[Tokens], Logits] | None = field(default=None, compare=False)

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments of `solve` that were given."""
        names = ("save", "penalties", "adjoint", "stop", "readout")
        return {name: value for name in names if (value := getattr(self, name)) not in (None, False)}


DEFAULT = Request()
"""A call that asks for nothing: the model's own solver, and the final state."""


class Depth(nn.Module, ABC):
    """x(T) = depth(x(0)). A new depth is one file with one subclass and `@DEPTHS.register(name)`.

    Its attributes say what it can do, so that no other code asks for its name.

    Args:
        make_field: makes one field; a depth calls it once for every different field that it has.
        solver_config: how it integrates unless a call says otherwise; its `steps` is the number of layers of a stack.

    Further options are keyword arguments with defaults and `rules`; a configuration keeps them in `depth_options`.
    """

    rules: ClassVar[Mapping[str, Expected]] = {}
    """Its options, and what each should be."""
    trainable: ClassVar[bool] = True
    """Whether there is a gradient through it."""
    has_trajectory: ClassVar[bool] = False
    """Whether it follows x(t) of one field, which can be integrated by any solver and analyzed."""
    keeps_states: ClassVar[bool] = False
    """Whether it has layers whose states can be kept, without an equation."""
    shares_field: ClassVar[bool] = False
    """Whether it has one field, so that another such depth can be used with the same weights."""
    fixed_graph: bool = True
    """Whether training computes the same for every batch of a shape, so that a CUDA graph can be captured."""
    layout: TokenLayout | None = None
    """Where the tokens of an image of the model's own size are, once `set_layout` was called."""

    field: Field

    def __init__(self, make_field: Callable[[], Field], solver_config: SolverConfig) -> None:
        super().__init__()
        self.solver_config = solver_config
        # Set by Hugging Face's gradient_checkpointing_enable(), and the second with its options.
        self.gradient_checkpointing = False
        self._gradient_checkpointing_func: partial[Any] | None = None

    @property
    def recompute(self) -> bool | Mapping[str, Any]:
        """Whether steps are computed again in the backward pass, or the options of torch's checkpoint for it."""
        if not (self.gradient_checkpointing and self.training):
            return False
        return True if self._gradient_checkpointing_func is None else self._gradient_checkpointing_func.keywords or True

    @abstractmethod
    def forward(self, x0: Tokens, request: Request = DEFAULT) -> Solution:
        """Carry the embedded image from 0 to T."""

    def set_layout(self, layout: TokenLayout) -> None:
        """Set where the tokens of an image of the model's own size are; a subclass refuses what it cannot use."""
        self.layout = layout

    def scale_initial_weights(self) -> None:
        """Set the first values of its own parameters, once those of its parts are set.

        Only with transformers' initialisers, which leave values from a checkpoint alone.
        """

    @classmethod
    def option_problems(cls, options: Mapping[str, Any]) -> list[str]:
        """What is wrong with its options, as sentences; a subclass adds what is wrong with several together."""
        return option_problems("depth_options", options, cls.rules, "this depth")

    @abstractmethod
    def describe(self) -> str:
        """What it computes, in a few words or a formula."""

    def resolve(self, solver: str | Solver | None, steps: int | None, horizon: float | None) -> SolverConfig | None:
        """The depth's own configuration except for what is given; None when nothing is."""
        if solver is None and steps is None and horizon is None:
            return None
        return self.solver_config.replace(solver, steps, horizon)

    def export_problem(self, solver_config: SolverConfig) -> str | None:
        """Why it has no fixed graph to export, as a sentence; None when it has one."""
        return None

    @property
    def own_weights(self) -> list[str]:
        """The weights beside those of the field, which another depth would not use."""
        names = [name for name, _ in self.named_parameters() if not name.startswith("field.")]
        return sorted({".".join(name.split(".")[:2]) for name in names})

    def as_depth(self, name: str | None) -> Depth:
        """Another depth around the same field; no weight is copied."""
        return self if name is None else HOOKS["other_depth"](self, name)
