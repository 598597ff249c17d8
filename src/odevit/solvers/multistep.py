"""x' = x + int_t^{t+h} p(s) ds, p through the last slopes: Adams-Bashforth, and exponential methods (ETD)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from odevit.core.base import SOLVERS, Dynamics, FixedStepSolver, History


def phi(k: int, z: float) -> float:
    """int_0^1 e^{(1 - s) z} s^{k-1} / (k-1)! ds, and 1 / k! at z = 0; phi_1 is (e^z - 1) / z."""
    if k == 1:
        return math.expm1(z) / z if z != 0.0 else 1.0
    if abs(z) < 0.5:
        # The recurrence cancels here; sixteen terms of z^j/(j+k)! are exact.
        return sum(z**j / math.factorial(j + k) for j in range(16))
    return (phi(k - 1, z) - 1 / math.factorial(k - 1)) / z


@SOLVERS.register("exponential_heun")
class ExponentialHeun(FixedStepSolver):
    """y = x0 + e^{-leak h}(x - x0) + h phi_1 N(x, t);  x' = y + h phi_2 (N(y, t + h) - N(x, t)).

    Order 2, two evaluations. The second-order exponential time differencing Runge-Kutta method, ETD2RK, of Cox and
    Matthews (2002). Without a leak it is Heun's method.
    """

    order = 2

    def step(self, dynamics: Dynamics, x: Tensor, t: float, h: float) -> Tensor:
        z = -dynamics.leak * h
        first = dynamics.forcing(x, t)
        y = torch.add(dynamics.relax(x, h), first, alpha=h * phi(1, z))
        second = dynamics.forcing(y, t + h)
        return torch.add(y, second - first, alpha=h * phi(2, z))

    def evaluations(self, components: int) -> int:
        return 2


def adams_weights(nodes: Sequence[float], h: float, z: float = 0.0) -> list[float]:
    """w_j = int_0^h e^{z (1 - s/h)} L_j(s) ds, L_j the Lagrange polynomial that is 1 at node j and 0 at the others.

    Nodes are times relative to the start of the step, so that steps can have different lengths. With z = 0 and equal
    steps these are the weights of Adams and Bashforth, h (3/2, -1/2) and h (23/12, -16/12, 5/12).
    """
    # int_0^h e^{z (1 - s/h)} s^k ds = h^{k+1} k! phi_{k+1}(z)
    moments = [h ** (k + 1) * math.factorial(k) * phi(k + 1, z) for k in range(len(nodes))]
    weights = []
    for j, own in enumerate(nodes):
        polynomial = [1.0]  # the coefficients of L_j, the constant one first
        for i, other in enumerate(nodes):
            if i != j:
                lower, upper = [0.0, *polynomial], [*polynomial, 0.0]
                polynomial = [(a - other * b) / (own - other) for a, b in zip(lower, upper, strict=True)]
        weights.append(sum(a * b for a, b in zip(polynomial, moments, strict=True)))
    return weights


class Multistep(FixedStepSolver):
    """x_{n+1} = x_n + sum_j w_j f(x_{n-j}, t_{n-j}): slopes of earlier steps replace further evaluations.

    A step without history is Heun's method: two evaluations, of which the first becomes the history. This also starts
    the method of order 3: its second step uses two slopes, and two steps with an error of h^3 do not change the order.
    The method restarts wherever the velocity has a jump or a kink. `step` is always a step without history.
    """

    restart = 1
    solves_leak: ClassVar[bool] = False
    interval: ClassVar[float]
    """z, when every step h < z / |lambda| is stable, lambda real and negative."""

    def step(self, dynamics: Dynamics, x: Tensor, t: float, h: float) -> Tensor:
        """A step without history."""
        return self.advance(dynamics, x, t, h)[0]

    def advance(
        self, dynamics: Dynamics, x: Tensor, t: float, h: float, history: History = ()
    ) -> tuple[Tensor, History]:
        points: History = ((t, self.slope(dynamics, x, t)), *history[: self.order - 1])
        after = self._integrate(dynamics, x, t, h, points)
        if not history:
            after = self._integrate(dynamics, x, t, h, (*points, (t + h, self.slope(dynamics, after, t + h))))
        return after, points[: self.order - 1]

    def _integrate(self, dynamics: Dynamics, x: Tensor, t: float, h: float, points: History) -> Tensor:
        weights = adams_weights([time - t for time, _ in points], h, self.rate(dynamics) * h)
        after = self.drift(dynamics, x, h)
        for weight, (_, slope) in zip(weights, points, strict=True):
            after = torch.add(after, slope, alpha=weight)
        return after

    def slope(self, dynamics: Dynamics, x: Tensor, t: float) -> Tensor:
        """The part of the velocity that is interpolated."""
        return dynamics(x, t)

    def rate(self, dynamics: Dynamics) -> float:
        """The rate of the linear part that is solved exactly."""
        return 0.0

    def drift(self, dynamics: Dynamics, x: Tensor, h: float) -> Tensor:
        """The flow of that linear part over a time h."""
        return x

    def evaluations(self, components: int) -> int:
        return 1


class ExponentialMultistep(Multistep):
    """x_{n+1} = x0 + e^{-leak h} (x_n - x0) + sum_j w_j N(x_{n-j}, t_{n-j}): the leak solved exactly.

    The exponential time differencing methods ETD2 and ETD3 of Cox and Matthews (2002), for steps of any lengths.
    Without a leak they are those of Adams and Bashforth.
    """

    solves_leak = True

    def slope(self, dynamics: Dynamics, x: Tensor, t: float) -> Tensor:
        return dynamics.forcing(x, t)

    def rate(self, dynamics: Dynamics) -> float:
        return -dynamics.leak

    def drift(self, dynamics: Dynamics, x: Tensor, h: float) -> Tensor:
        return dynamics.relax(x, h)


@SOLVERS.register("ab2")
class AdamsBashforth2(Multistep):
    """x' = x + h (3/2 f_n - 1/2 f_{n-1}). Order 2, one evaluation after the first step."""

    order = 2
    interval = 1.0


@SOLVERS.register("ab3")
class AdamsBashforth3(Multistep):
    """x' = x + h (23/12 f_n - 16/12 f_{n-1} + 5/12 f_{n-2}). Order 3, one evaluation after the first step."""

    order = 3
    interval = 6 / 11


@SOLVERS.register("etd_ab2")
class ExponentialAdams2(ExponentialMultistep):
    """x' = x0 + e^{-leak h} (x - x0) + h (phi_1 + phi_2) N_n - h phi_2 N_{n-1}. Order 2, one evaluation."""

    order = 2
    interval = 1.0


@SOLVERS.register("etd_ab3")
class ExponentialAdams3(ExponentialMultistep):
    """N extrapolated by the parabola through its last three values. Order 3, one evaluation."""

    order = 3
    interval = 6 / 11
