"""dx/dt = sum_i f_i(x, t) - leak (x - anchor): the equation that one trajectory obeys."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from odevit.tokens import AttentionMap, Tokens

Observer = Callable[[AttentionMap], None]
"""Is handed every attention map as it is made, with its gradient."""

Component = Callable[[Tokens, float, Observer | None], Tokens]
"""One term f_i(x, t) of the velocity. Always an increment, never the layer with its residual."""


@dataclass(frozen=True)
class Dynamics:
    """dx/dt = sum_i f_i(x, t) - leak (x - anchor).

    A field becomes `Dynamics` when a trajectory starts: the starting point is known then, and the dropout masks
    of the trajectory are drawn. Solvers see nothing else. Runge-Kutta methods call it, splittings take its
    components one by one, and both splittings and exponential methods solve its linear part exactly.

    Args:
        components: the terms f_i by name, in the order in which a splitting applies them.
        anchor: where the leak pulls to, the embedded image.
        leak: strength of the pull; 0 is the paper's equation.
        observer: is handed every attention map; asking for maps turns fused attention off.
    """

    components: Mapping[str, Component]
    anchor: Tensor
    leak: float = 0.0
    observer: Observer | None = None

    def component(self, name: str, x: Tensor, t: float) -> Tensor:
        """f_name(x, t)."""
        return self.components[name](x, t, self.observer)

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

    def anchored(self, anchor: Tensor) -> Dynamics:
        """The same equation, pulled towards another point."""
        return replace(self, anchor=anchor)

    def observed_by(self, observer: Observer | None) -> Dynamics:
        """The same trajectory, its attention maps handed to `observer`."""
        return replace(self, observer=observer)


class Field(nn.Module, ABC):
    """A module that moves tokens. It knows nothing of solvers, losses, teachers or plots."""

    @abstractmethod
    def dynamics(self, x0: Tokens) -> Dynamics:
        """The equation of the trajectory that starts at `x0`, with its dropout masks drawn."""

    def forward(self, x: Tokens, t: float = 0.0, x0: Tokens | None = None) -> Tokens:
        """dx/dt at (x, t); `x0` is where the trajectory started and matters only to a field with a leak."""
        return self.dynamics(x if x0 is None else x0)(x, t)
