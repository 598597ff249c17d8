"""dx*/dw = (1 - J)^{-1} dg/dw, x* = g(x*): gradients of a fixed point without the way that led to it.

Written by hand although torchdeq 0.1.0 runs beside torch 2.13: it lets a batch search until its last sample is done,
does not tell when its backward search fails, and has no Newton's method.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._functorch import config as aot

from odevit.errors import OdeVitWarning
from odevit.solvers.fixed_point import Map, Search
from odevit.solvers.precision import precision_now

NOT_CONVERGED = 100
"""Tolerances that a residual may come to before a fixed point counts as not found."""
UNSURE = 0.1
"""Of |dL/dx*|, what may be missing of the equation for u. Not of |u|: where 1 - J nearly vanishes u can be of any size,
and a small share of it is more than all there is to know."""


def implicit(
    g: Map,
    x: Tensor,
    search: Search,
    *,
    tolerance: float = 1e-4,
    iterations: int = 50,
    at_rest: Tensor | None = None,
) -> Tensor:
    """x*, with the gradient of the implicit function theorem: u^T dg/dw, u = J^T u + dL/dx* (Bai et al. 2019).

    The equation for u is solved by the same search when the gradient arrives, in a hook: one evaluation of g is kept,
    however long the searches are. A sample that is not at rest, or whose u is not found, has the gradient of one step
    instead, u = dL/dx* (Fung et al. 2022): rough, but without any, nothing would lead it back to where there is one.

    Args:
        g: states and the numbers of their samples in the batch to the next states, with their graph.
        x: the fixed points [batch, ...].
        search, tolerance, iterations: how u is searched for.
        at_rest: which of them are fixed points [batch]; all of them unless given.
    """
    precision = precision_now(x)

    def evaluated(samples: Tensor, *, everybody: bool = False) -> Graph:
        here = (x if everybody else x[samples]).detach().requires_grad_()
        # The search runs the backward pass again and again: a compiled one that gives its memory away could not be.
        stance = torch.compiler.set_stance("force_eager") if aot.donated_buffer else nullcontext()
        with torch.enable_grad(), precision, stance:
            return Graph(samples, here, g(here, samples))

    def adjoint(gradient: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "create_graph=True asks for a second derivative, and an implicit gradient has only the first; "
                "use depth_options={'gradient': 'unrolled'}"
            )
        latest = whole

        def transposed(u: Tensor, samples: Tensor) -> Tensor:
            nonlocal latest
            if 2 * len(samples) <= len(latest.samples):  # half of them are gone, and need not be computed any more
                latest = evaluated(samples)
            pulled = latest.pulled(u, samples)
            if at_rest is not None:
                pulled = torch.where(each(at_rest[samples]), pulled, 0.0)
            return pulled + gradient[samples]

        answer = search(transposed, gradient, tolerance=tolerance, iterations=iterations)
        missing = answer.residual * answer.state.flatten(1).norm(dim=1)
        lost = missing > UNSURE * gradient.flatten(1).norm(dim=1)
        if lost.any():
            # Without numbers that change: Python says the same sentence once.
            warnings.warn(
                f"The implicit gradient of a sample was not found in {iterations} evaluations, and such samples have "
                "that of one step. Where there are many, raise depth.iterations or depth.jacobian",
                OdeVitWarning,
                stacklevel=2,
            )
        return torch.where(each(lost), gradient, answer.state)

    def each(of: Tensor) -> Tensor:
        return of.view(-1, *[1] * (x.ndim - 1))

    whole = evaluated(torch.arange(len(x), device=x.device), everybody=True)
    # The value of x* itself, so that training and evaluation see the same state.
    state = whole.image + (x - whole.image).detach()
    if state.requires_grad:
        state.register_hook(adjoint)
    return state


@dataclass(frozen=True)
class Graph:
    """g(x) of some samples, numbered in ascending order, with the graph that leads back to x."""

    samples: Tensor
    here: Tensor
    image: Tensor

    def pulled(self, u: Tensor, samples: Tensor) -> Tensor:
        """J^T u of those who are asked for; they are among the samples."""
        place = torch.searchsorted(self.samples, samples)
        whole = torch.zeros_like(self.here).index_copy_(0, place, u)
        (pulled,) = torch.autograd.grad(self.image, self.here, whole, retain_graph=True)
        return pulled[place]


def phantom(g: Callable[[Tensor], Tensor], x: Tensor, *, steps: int = 5, damping: float = 1.0) -> Tensor:
    """x*, with the gradient of `steps` steps x <- (1 - damping) x + damping g(x) from there (Geng et al. 2021).

    For many steps it is the implicit one, sum_i (J^T)^i cut off after so many terms; one step is the Jacobian-free
    gradient of Fung et al. (2022). What is kept grows with `steps`, not with the search.
    """
    state = x.detach()
    for _ in range(steps):
        state = torch.lerp(state, g(state), damping) if damping != 1.0 else g(state)
    return state + (x - state).detach()
