"""dx*/dw = (1 - J)^{-1} dg/dw, x* = g(x*): gradients of a fixed point that do not depend on the search for it.

Not taken from torchdeq 0.1.0: there, a batch is searched until its last sample has converged, a failed backward search
is not reported, and Newton's method is missing.
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
from odevit.solvers.precision import current_autocast

NOT_CONVERGED = 100
"""A fixed point was not found if its residual is larger than so many tolerances."""
MAX_GRADIENT_ERROR = 0.1
"""The largest residual of the equation for u, relative to |dL/dx*|.

Not relative to |u|: where 1 - J is nearly singular, u is large, and a small share of it is more than |dL/dx*|.
"""


def implicit(
    g: Map,
    x: Tensor,
    search: Search,
    *,
    tolerance: float = 1e-4,
    iterations: int = 50,
    converged: Tensor | None = None,
) -> Tensor:
    """x*, with the gradient of the implicit function theorem: u^T dg/dw, u = J^T u + dL/dx* (Bai et al. 2019).

    A hook solves the equation for u with the same search when the gradient arrives, so that one evaluation of g is kept
    in memory, however long the searches are. A sample that has not converged, or whose u was not found, gets the
    gradient of one step instead, u = dL/dx* (Fung et al. 2022): without it, training could not reach weights that have
    a fixed point again.

    Args:
        g: states and the indices of their samples in the batch to the next states, with their graph.
        x: the fixed points [batch, ...].
        search, tolerance, iterations: how u is searched for.
        converged: which of them are fixed points [batch]; all of them unless given.
    """
    autocast = current_autocast(x)

    def evaluate(samples: Tensor, *, whole_batch: bool = False) -> Graph:
        points = (x if whole_batch else x[samples]).detach().requires_grad_()
        # The search runs the backward pass many times, which a compiled graph with donated buffers does not allow.
        stance = torch.compiler.set_stance("force_eager") if aot.donated_buffer else nullcontext()
        with torch.enable_grad(), autocast, stance:
            return Graph(samples, points, g(points, samples))

    def adjoint(gradient: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "create_graph=True asks for a second derivative, and an implicit gradient has only the first; "
                "use depth_options={'gradient': 'unrolled'}"
            )
        graph = whole

        def transposed(u: Tensor, samples: Tensor) -> Tensor:
            nonlocal graph
            if 2 * len(samples) <= len(graph.samples):  # half of them have converged: compute the others alone
                graph = evaluate(samples)
            product = graph.transposed_product(u, samples)
            if converged is not None:
                product = torch.where(per_sample(converged[samples]), product, 0.0)
            return product + gradient[samples]

        solution = search(transposed, gradient, tolerance=tolerance, iterations=iterations)
        error = solution.residual * solution.state.flatten(1).norm(dim=1)
        failed = error > MAX_GRADIENT_ERROR * gradient.flatten(1).norm(dim=1)
        if failed.any():
            # No numbers that change in the text, so that Python shows it once.
            warnings.warn(
                f"The implicit gradient of a sample was not found in {iterations} evaluations, and such samples have "
                "that of one step. If there are many, raise depth.iterations or depth.jacobian",
                OdeVitWarning,
                stacklevel=2,
            )
        return torch.where(per_sample(failed), gradient, solution.state)

    def per_sample(values: Tensor) -> Tensor:
        return values.view(-1, *[1] * (x.ndim - 1))

    whole = evaluate(torch.arange(len(x), device=x.device), whole_batch=True)
    # The value of x* itself, so that training and evaluation use the same state.
    state = whole.image + (x - whole.image).detach()
    if state.requires_grad:
        state.register_hook(adjoint)
    return state


@dataclass(frozen=True)
class Graph:
    """g(points) of the samples with these indices, which ascend, and its autograd graph."""

    samples: Tensor
    points: Tensor
    image: Tensor

    def transposed_product(self, u: Tensor, samples: Tensor) -> Tensor:
        """J^T u for some of the samples."""
        position = torch.searchsorted(self.samples, samples)
        padded = torch.zeros_like(self.points).index_copy_(0, position, u)
        (product,) = torch.autograd.grad(self.image, self.points, padded, retain_graph=True)
        return product[position]


def phantom(g: Callable[[Tensor], Tensor], x: Tensor, *, steps: int = 5, damping: float = 1.0) -> Tensor:
    """x*, with the gradient of `steps` steps x <- (1 - damping) x + damping g(x) from there (Geng et al. 2021).

    That is the implicit gradient sum_i (J^T)^i with `steps` terms; one step is the Jacobian-free gradient of Fung et
    al. (2022). Memory grows with `steps`, not with the search.
    """
    state = x.detach()
    for _ in range(steps):
        state = torch.lerp(state, g(state), damping) if damping != 1.0 else g(state)
    return state + (x - state).detach()


def jacobian_size(f: Callable[[Tensor], Tensor], x: Tensor, distance: float = 0.03) -> Tensor:
    """|f(x + d v) - f(x)|^2 / (d^2 numel), v ~ N(0, 1): an estimate of |J|_F^2 / numel, J = f'(x), with gradient.

    Hutchinson's estimator with a finite difference instead of a derivative: fused attention and compiled fields have
    no second derivative.

    Args:
        f: maps each sample of a batch independently of the others.
        x: where J is estimated [batch, ...].
        distance: d relative to the root mean square of x; half precision rounds a much smaller one away.
    """
    precise = torch.promote_types(x.dtype, torch.float32)
    length = distance * x.detach().to(precise).square().mean().sqrt()
    moved = x + (length * torch.randn_like(x)).to(x.dtype)
    change = (f(moved) - f(x)).to(precise)
    return (change / length).square().mean()
