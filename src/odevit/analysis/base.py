"""What every measurement shares: a frozen model, differentiable dynamics, and products with a Jacobian."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from odevit.core.base import Dynamics
from odevit.core.solve import Equation, dynamics_of


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Within this context the model is in evaluation mode without gradients; after it everything is as it was.

    The mode of every module, what requires gradients, and the global random states are restored, also after an error.
    """
    modes = [(module, module.training) for module in model.modules()]
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        try:
            model.eval().requires_grad_(False)
            yield
        finally:
            for module, mode in modes:
                module.training = mode
            for parameter, flag in flags:
                parameter.requires_grad_(flag)


def differentiable_dynamics(field: Equation, anchor: Tensor) -> Dynamics:
    """dx/dt = f(x, t) of the trajectory that starts at `anchor`, ready for forward derivatives.

    The fused kernel has none, but attention that is observed is computed step by step. A field in training mode is
    measured with the dropout masks of one trajectory.
    """
    with torch.random.fork_rng([anchor.device] if anchor.is_cuda else []):
        return dynamics_of(field, anchor.detach()).with_attention_hook(lambda _: None)


def jacobian(velocity: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Callable[[Tensor], Tensor], ...]:
    """Both products at x, recorded once for many of them.

    u -> J^T u is linear, so what its own derivative pulls back is J v: several times faster than a forward derivative,
    which evaluates f anew for every v.
    """
    pull = torch.func.vjp(velocity, x)[1]
    push = torch.func.vjp(lambda u: pull(u)[0], torch.zeros_like(x))[1]
    return lambda v: push(v)[0], lambda u: pull(u)[0]
