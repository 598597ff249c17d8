"""Equations whose solutions are known, as `Dynamics` with two components and a leak."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from odevit.core.base import Dynamics


@dataclass(frozen=True)
class Problem:
    """dx/dt = f_1 + f_2 - leak (x - x0), with its exact flow."""

    dynamics: Dynamics
    exact: Callable[[float], Tensor]

    @property
    def x0(self) -> Tensor:
        return self.dynamics.anchor


def linear(leak: float) -> Problem:
    """x' = (A + B) x - leak (x - x0), A and B do not commute; exact by the matrix exponential of the affine system."""
    generator = torch.Generator().manual_seed(1)
    A, B = (0.7 * torch.randn(4, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    x0 = torch.randn(3, 4, generator=generator, dtype=torch.float64)

    def exact(t: float) -> Tensor:
        affine = torch.zeros(3, 5, 5, dtype=torch.float64)
        affine[:, :4, :4] = A + B - leak * torch.eye(4, dtype=torch.float64)
        affine[:, :4, 4] = leak * x0
        start = torch.cat([x0, torch.ones(3, 1, dtype=torch.float64)], dim=1)
        return (torch.matrix_exp(affine * t) @ start.unsqueeze(-1)).squeeze(-1)[:, :4]

    components = {"attention": lambda x, t, _: x @ A.T, "mlp": lambda x, t, _: x @ B.T}
    return Problem(Dynamics(components, anchor=x0, leak=leak), exact)


def riccati(leak: float) -> Problem:
    """x' = a x - b x^2 - leak (x - x0) = -b (x - r)(x - s): logistic growth pulled back to its start."""
    a, b = 1.3, 0.8
    x0 = torch.tensor([0.1, 0.4, 2.5], dtype=torch.float64)
    root = ((a - leak) ** 2 + 4 * b * leak * x0).sqrt()
    r, s = ((a - leak) + root) / (2 * b), ((a - leak) - root) / (2 * b)

    def exact(t: float) -> Tensor:
        ratio = (x0 - r) / (x0 - s) * torch.exp(-root * t)
        return (r - s * ratio) / (1 - ratio)

    components = {"attention": lambda x, t, _: a * x, "mlp": lambda x, t, _: -b * x**2}
    return Problem(Dynamics(components, anchor=x0, leak=leak), exact)


PROBLEMS = {"linear": linear, "nonlinear": riccati}


def slope(errors: list[float], ratio: float = 2.0) -> float:
    """-d log(error) / d log(N), N growing by `ratio` from one error to the next; the finest pair counts."""
    return math.log(errors[-2] / errors[-1]) / math.log(ratio)
