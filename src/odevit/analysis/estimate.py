"""value +- error, and the equation it is measured on: what measurements have in common."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from odevit.field.dynamics import Dynamics
from odevit.solver import Equation, dynamics_of


@dataclass(frozen=True)
class Estimate:
    """A value for each sample, and how much the last iteration still changed it, relatively."""

    value: Tensor
    error: Tensor


def measurable(field: Equation, anchor: Tensor) -> Dynamics:
    """dx/dt = f(x, t) of the trajectory that starts at `anchor`, ready for forward derivatives.

    The fused kernel has none, but attention that is observed is computed step by step. A field in training mode is
    measured with the dropout masks of one trajectory, and the global generator is left as it was.
    """
    with torch.random.fork_rng([anchor.device] if anchor.is_cuda else []):
        return dynamics_of(field, anchor.detach()).observed_by(lambda _: None)
