"""A value with its error, and the equation it is measured on: what measurements have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from odevit.field.dynamics import Dynamics, Field
from odevit.solver.solve import dynamics_of

Equation = Field | Dynamics | Callable[[Tensor, float], Tensor]
"""What can be measured: a field, the dynamics of a trajectory, or any function f(x, t) -> velocity."""


@dataclass(frozen=True)
class Estimate:
    """A value for each sample, and how much the last iteration still changed it, relatively."""

    value: Tensor
    error: Tensor


def measurable(field: Equation, anchor: Tensor) -> Dynamics:
    """dx/dt = f(x, t) of the trajectory that starts at `anchor`, ready for forward derivatives.

    The fused kernel has none; whoever watches the maps gets attention written out. A field in training mode is measured
    with the dropout masks of one trajectory, and the global generator is as it was.
    """
    with torch.random.fork_rng([anchor.device] if anchor.is_cuda else []):
        return dynamics_of(field, anchor.detach()).observed_by(lambda _: None)
