"""What every measurement shares: a frozen model, dynamics with forward derivatives, products with a Jacobian."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from odevit.core.base import Dynamics
from odevit.core.solution import Solution
from odevit.core.solve import Equation, dynamics_of, solve
from odevit.core.solver_config import SolverConfig
from odevit.tokens import Logits


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode without gradients, and restore it on leaving.

    The mode of every module, `requires_grad` of every parameter and the global random states are restored, also after
    an error.
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
    """dx/dt = f(x, t) of the trajectory that starts at `anchor`, with forward derivatives.

    The fused attention kernel has none. A hook on attention makes the field compute it step by step. A field in
    training mode keeps the dropout masks of one trajectory.
    """
    with torch.random.fork_rng([anchor.device] if anchor.is_cuda else []):
        return dynamics_of(field, anchor.detach()).with_attention_hook(lambda _: None)


def integrate(equation: Equation, x: Tensor, config: SolverConfig, t0: float = 0.0, **options: Any) -> Solution:
    """`solve` with the solver, steps, horizon and grid of a config, from x(t0) on."""
    steps = {"solver": config.method, "steps": config.steps, "grid": config.grid}
    return solve(equation, x, t0=t0, t1=t0 + float(config.horizon), **steps, **options)  # type: ignore[arg-type]


def jacobian(velocity: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Callable[[Tensor], Tensor], ...]:
    """v -> J v and u -> J^T u, J = df/dx at x, without forming J; recorded once for many products.

    u -> J^T u is linear, so its own vector-Jacobian product is J v: several times faster than a forward derivative,
    which evaluates f anew for every v.
    """
    pull = torch.func.vjp(velocity, x)[1]
    push = torch.func.vjp(lambda u: pull(u)[0], torch.zeros_like(x))[1]
    return lambda v: push(v)[0], lambda u: pull(u)[0]


def predicted_classes(logits: Logits) -> Tensor:
    """The likeliest class of each image, and -1 where the logits are not finite."""
    return torch.where(logits.isfinite().all(dim=-1), logits.argmax(dim=-1), -1)
