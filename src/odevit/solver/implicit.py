"""dx*/dw = (1 - J)^{-1} dg/dw, x* = g(x*): gradients of a fixed point without the way that led to it.

Written by hand although torchdeq 0.1.0 runs beside torch 2.13, and gives the same gradients: it lets a batch search
until its last sample is done, does not tell when its backward search fails, and has no Newton's method.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor
from torch._functorch import config as aot

from odevit.errors import OdeVitWarning
from odevit.solver.fixed_point import Search

RESTLESS = 100
"""Tolerances that a residual may come to before a fixed point counts as not found."""


def implicit(
    g: Callable[[Tensor], Tensor],
    x: Tensor,
    search: Search,
    *,
    tolerance: float = 1e-4,
    iterations: int = 50,
) -> Tensor:
    """x*, with the gradient of the implicit function theorem: u^T dg/dw, u = J^T u + dL/dx* (Bai et al. 2019).

    The equation for u is solved by the same search when the gradient arrives, in a hook: one evaluation of g is kept,
    however long the searches are. A sample whose u is not found gets no gradient, and a warning tells.

    Args:
        g: the whole batch to the whole batch, with its graph; no sample sees another.
        x: the fixed points [batch, ...].
        search, tolerance, iterations: how u is searched for.
    """
    here = x.detach().requires_grad_()
    # The search runs the backward pass again and again: a compiled one that gives its memory away could not be.
    with torch.compiler.set_stance("force_eager") if aot.donated_buffer else nullcontext():
        image = g(here)

    def adjoint(gradient: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "create_graph=True asks for a second derivative, and an implicit gradient has only the first; "
                "use depth_options={'gradient': 'unrolled'}"
            )

        def transposed(u: Tensor, samples: Tensor) -> Tensor:
            whole = torch.zeros_like(gradient).index_copy_(0, samples, u)
            (pulled,) = torch.autograd.grad(image, here, whole, retain_graph=True)
            return pulled[samples] + gradient[samples]

        answer = search(transposed, gradient, tolerance=tolerance, iterations=iterations)
        lost = answer.residual > RESTLESS * tolerance
        if lost.any():
            # Without numbers that change: Python says the same sentence once.
            warnings.warn(
                f"The implicit gradient of a sample was not found in {iterations} evaluations, and such samples are "
                "not learned from. Where there are many, raise depth.iterations or use depth.gradient=phantom",
                OdeVitWarning,
                stacklevel=2,
            )
        return torch.where(lost.view(-1, *[1] * (gradient.ndim - 1)), 0.0, answer.state)

    # The value of x* itself, so that training and evaluation see the same state.
    state = image + (x - image).detach()
    if state.requires_grad:
        state.register_hook(adjoint)
    return state


def phantom(g: Callable[[Tensor], Tensor], x: Tensor, *, steps: int = 5, damping: float = 1.0) -> Tensor:
    """x*, with the gradient of `steps` steps x <- (1 - damping) x + damping g(x) from there (Geng et al. 2021).

    For many steps it is the implicit one, sum_i (J^T)^i cut off after so many terms; one step is the Jacobian-free
    gradient of Fung et al. (2022). What is kept grows with `steps`, not with the search.
    """
    state = x.detach()
    for _ in range(steps):
        state = torch.lerp(state, g(state), damping) if damping != 1.0 else g(state)
    return state + (x - state).detach()
