"""g(t) f(x, t): a velocity that falls to 0 after the horizon."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace

import torch
from torch import Tensor

from odevit.core.base import HOOKS, Component, Dynamics, with_term


@HOOKS.register("fade")
@dataclass(frozen=True)
class Fade:
    """g(t) = 1 up to T, (1 + cos(pi (t - T) / (share T))) / 2 after it, 0 from T (1 + share) on.

    The trajectory of a field with a fade is constant from T (1 + share) on, for any weights.
    """

    horizon: float
    share: float

    @property
    def end(self) -> float:
        """T (1 + share), from which on the velocity is 0."""
        return self.horizon * (1.0 + self.share)

    def factor(self, t: float) -> float:
        """g(t)."""
        if t <= self.horizon:
            return 1.0
        if t >= self.end:
            return 0.0
        return (1.0 + math.cos(math.pi * (t - self.horizon) / (self.share * self.horizon))) / 2.0

    def __call__(self, dynamics: Dynamics) -> Dynamics:
        """The same equation with its terms multiplied by g(t)."""
        return FadingDynamics(
            dynamics.components, dynamics.anchor, dynamics.leak, dynamics.attention_hook, inner=dynamics, fade=self
        )

    def __str__(self) -> str:
        return f"fading to 0 after t = {self.horizon:g}"


@dataclass(frozen=True)
class FadingDynamics(Dynamics):
    """dx/dt = g(t) sum_i f_i(x, t) - leak (x - anchor), `inner` being the equation with g = 1."""

    _: KW_ONLY
    inner: Dynamics
    fade: Fade

    def component(self, name: str, x: Tensor, t: float) -> Tensor:
        factor = self.fade.factor(t)
        if factor == 0.0 and self.attention_hook is None:
            return torch.zeros_like(x)  # with a hook, maps are computed at every evaluation
        velocity = self.components[name](x, t, self.attention_hook)
        return velocity if factor == 1.0 else factor * velocity

    def for_step(self, t0: float, t1: float) -> Dynamics:
        inner = self.inner.for_step(t0, t1)
        return self if inner is self.inner else replace(self, components=inner.components, inner=inner)

    def discontinuities(self, t0: float, t1: float) -> tuple[float, ...]:
        return self.inner.discontinuities(t0, t1)

    def has_kink(self, t0: float, t1: float) -> bool:
        return t0 < self.fade.end <= t1 or self.inner.has_kink(t0, t1)

    def is_static(self, t0: float, t1: float) -> bool:
        return self.attention_hook is None and min(t0, t1) >= self.fade.end

    def add_term(self, term: Component) -> Dynamics:
        return replace(self, components=with_term(self.components, term), inner=self.inner.add_term(term))
