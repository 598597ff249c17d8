"""dx/dt = g(t) sum_i f_i(x, t) - leak (x - anchor): the equation that one trajectory obeys."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from odevit.tokens import AttentionMap, Tokens

AttentionHook = Callable[[AttentionMap], None]
"""Is handed every attention map as it is made, with its gradient."""

Component = Callable[[Tokens, float, AttentionHook | None], Tokens]
"""One term f_i(x, t) of the velocity. Always an increment, never the layer with its residual."""


@dataclass(frozen=True)
class Fade:
    """g(t) = 1 up to T, (1 + cos(pi (t - T) / (share T))) / 2 after it, 0 from T (1 + share) on.

    What comes after the horizon T ends by itself: the state rests there, whatever the weights are.
    """

    horizon: float
    share: float

    @property
    def end(self) -> float:
        """T (1 + share), from when on nothing moves."""
        return self.horizon * (1.0 + self.share)

    def __call__(self, t: float) -> float:
        if t <= self.horizon:
            return 1.0
        if t >= self.end:
            return 0.0
        return (1.0 + math.cos(math.pi * (t - self.horizon) / (self.share * self.horizon))) / 2.0


@dataclass(frozen=True)
class Dynamics:
    """dx/dt = g(t) sum_i f_i(x, t) - leak (x - anchor).

    A field becomes `Dynamics` when a trajectory starts: the starting point is known then, and the dropout masks
    of the trajectory are drawn. Solvers see nothing else. Runge-Kutta methods call it, splittings take its
    components one by one, and both splittings and exponential methods solve its linear part exactly.

    Args:
        components: the terms f_i by name, in the order in which a splitting applies them.
        anchor: where the leak pulls to, the embedded image.
        leak: strength of the pull; 0 is the paper's equation.
        observer: is handed every attention map; asking for maps turns fused attention off.
        fade: g, which ends the motion after the horizon; None is g = 1.
    """

    components: Mapping[str, Component]
    anchor: Tensor
    leak: float = 0.0
    observer: AttentionHook | None = None
    fade: Fade | None = None

    def component(self, name: str, x: Tensor, t: float) -> Tensor:
        """g(t) f_name(x, t)."""
        share = 1.0 if self.fade is None else self.fade(t)
        if share == 0.0 and self.observer is None:
            return torch.zeros_like(x)  # whoever watches wants to see what would have moved it
        velocity = self.components[name](x, t, self.observer)
        return velocity if share == 1.0 else share * velocity

    def forcing(self, x: Tensor, t: float) -> Tensor:
        """g(t) sum_i f_i(x, t), the velocity without its linear part."""
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

    def for_step(self, t0: float, t1: float) -> Dynamics:
        """The equation as a step from t0 to t1 sees it: a field that jumps in time must not do so within the step."""
        return self

    def discontinuities(self, t0: float, t1: float) -> tuple[float, ...]:
        """Between two times, those at which the velocity jumps: a solver that chooses its steps has to land there."""
        return ()

    def has_kink(self, t0: float, t1: float) -> bool:
        """Whether it jumps or turns a corner between two times: slopes from before then say nothing of those after."""
        return self.fade is not None and t0 < self.fade.end <= t1  # what rests has no past

    def is_static(self, t0: float, t1: float) -> bool:
        """Whether none of its terms is evaluated between two times: what has faded moves nothing."""
        return self.fade is not None and self.observer is None and min(t0, t1) >= self.fade.end

    def add_term(self, push: Component) -> Dynamics:
        """The same equation with one more term, as a part of its last component.

        As a component of its own it would be a part more for a splitting, which then makes other steps of the rest,
        however weak the push is.
        """
        return replace(self, components=with_term(self.components, push))

    def with_anchor(self, anchor: Tensor) -> Dynamics:
        """The same equation, pulled towards another point."""
        return replace(self, anchor=anchor)

    def with_attention_hook(self, observer: AttentionHook | None) -> Dynamics:
        """The same trajectory, its attention maps handed to `observer`."""
        return replace(self, observer=observer)


def with_term(components: Mapping[str, Component], push: Component) -> dict[str, Component]:
    """f_1, ..., f_k + push."""
    *_, (last, alone) = components.items()

    def both(x: Tensor, t: float, observer: AttentionHook | None) -> Tensor:
        return alone(x, t, observer) + push(x, t, observer)

    return {**components, last: both}


class Field(nn.Module, ABC):
    """A module that moves tokens. It knows nothing of solvers, losses, teachers or plots."""

    dim: int
    """The width of the tokens that it moves."""
    autonomous_from: float = 0.0
    """The time from which on the velocity depends on the state alone: 0 for a field without time."""

    @abstractmethod
    def dynamics(self, x0: Tokens) -> Dynamics:
        """The equation of the trajectory that starts at `x0`, with its dropout masks drawn."""

    def at(self, t: float) -> Field:
        """The field with the weights that it has at time t; one whose weights do not move is itself."""
        return self

    def describe(self) -> str:
        """The equation in a line, and from when on it does not know the time."""
        return "dx/dt = f(x, t)"

    def grid_problems(self, edges: Sequence[float]) -> list[str]:
        """Why it cannot be integrated in steps between these times, as sentences."""
        return []

    def forward(self, x: Tokens, t: float = 0.0, x0: Tokens | None = None) -> Tokens:
        """dx/dt at (x, t); `x0` is where the trajectory started and matters only to a field with a leak."""
        return self.dynamics(x if x0 is None else x0)(x, t)
