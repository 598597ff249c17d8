"""x = g(x): searches for a fixed point (Anderson, Broyden, Newton-Krylov), one search for each sample of a batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from odevit.registry import Registry
from odevit.solvers.precision import autocast_map_only

Map = Callable[[Tensor, Tensor], Tensor]
"""g(x, samples): states, and the indices of their samples in the batch, to the next states."""


@dataclass(frozen=True)
class FixedPoint:
    """The best x of each sample, its residual |g(x) - x| / |x|, and the number of evaluations of g."""

    state: Tensor
    residual: Tensor
    evaluations: Tensor


class Search(Protocol):
    """x0 [batch, ...] to a fixed point. It ends at a residual below `tolerance` or after `iterations` evaluations."""

    def __call__(self, g: Map, x0: Tensor, *, tolerance: float = ..., iterations: int = ...) -> FixedPoint: ...


SEARCHES: Registry[Search] = Registry("search")
COMPACTION_INTERVAL = 8
"""Converged samples are removed from the batch once they are an eighth of it: each removal copies the whole history."""
BROYDEN_GROWTH = 3.0
"""The factor by which a residual may grow in one step of Broyden's method before its history is dropped."""


class FixedPointState:
    """The samples that have not converged, and the best state found for every sample.

    States are vectors here, [sample, number], in the order of `samples`. A sample has converged when its residual is
    small. Its best state is not updated any more, and it is removed from the batch at the next compaction.

    A step of a search uses few operations that read little memory: on a GPU, reading a long history or starting a
    kernel takes longer than a step of a small field.
    """

    def __init__(self, g: Map, x0: Tensor) -> None:
        self.g, self.shape = g, x0.shape
        self.samples = torch.arange(len(x0), device=x0.device)
        self.best = x0.flatten(1)
        self.residual = torch.full((len(x0),), torch.inf, device=x0.device, dtype=torch.float32)
        self.evaluations, self.count = torch.zeros_like(self.samples), 0
        self.active, self.num_active = torch.ones_like(self.samples, dtype=torch.bool), len(x0)
        self._results: tuple[Tensor, ...] | None = None

    def evaluate(self, x: Tensor) -> Tensor:
        """g(x), counted."""
        self.count += 1
        return self.g(x.view(-1, *self.shape[1:]), self.samples).flatten(1)

    def update_best(self, x: Tensor, delta: Tensor) -> Tensor:
        """The residuals |g(x) - x| / |x| from delta = g(x) - x, infinite where they are NaN; keeps the best states."""
        # The smallest number in place of zero: gradients are searched for as well, and some are tiny.
        length = x.norm(dim=1).clamp_min(torch.finfo(x.dtype).tiny)
        error = (delta.norm(dim=1) / length).float().nan_to_num(torch.inf, torch.inf)
        # torch.where instead of indexing: a boolean index waits for the GPU.
        better = self.active & (error < self.residual)
        self.best = torch.where(better[:, None], x, self.best)
        self.residual = torch.where(better, error, self.residual)
        return error

    def compact(self, unconverged: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Mark the other samples as converged; the tensors [sample, ...] without the samples that are removed now."""
        self.evaluations = torch.where(self.active, self.count, self.evaluations)
        self.active = self.active & unconverged
        self.num_active = int(self.active.sum())  # the only place in a step that waits for the device
        kept_share = COMPACTION_INTERVAL * self.num_active
        if self.finished or kept_share > (COMPACTION_INTERVAL - 1) * len(self.samples):
            return tensors
        self._store_results()
        kept = self.active.nonzero().squeeze(1)
        self.best, self.residual, self.evaluations = self.best[kept], self.residual[kept], self.evaluations[kept]
        self.samples, self.active = self.samples[kept], self.active[kept]
        return tuple(tensor[kept] for tensor in tensors)

    @property
    def finished(self) -> bool:
        """Whether all samples have converged."""
        return self.num_active == 0

    def replace_nonfinite(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x, with the best state of a sample where it is not finite, and the samples that are finite [sample, 1]."""
        # One number that is not finite makes the sum so; a sum in half precision can overflow.
        precise = torch.promote_types(x.dtype, torch.float32)
        finite = torch.isfinite(x.sum(dim=1, keepdim=True, dtype=precise))
        return torch.where(finite, x, self.best), finite

    def result(self) -> FixedPoint:
        """The best states of the whole batch."""
        self.evaluations = torch.where(self.active, self.count, self.evaluations)
        best, residual, evaluations = self._store_results()
        return FixedPoint(best.view(self.shape), residual, evaluations)

    def _store_results(self) -> tuple[Tensor, ...]:
        """The results of the whole batch, updated with those of the samples still in it."""
        latest = self.best, self.residual, self.evaluations
        if self._results is None:
            self._results = latest  # no sample was removed yet
        else:
            for whole, part in zip(self._results, latest, strict=True):
                whole.index_copy_(0, self.samples, part)
        return self._results


@SEARCHES.register("anderson")
@torch.no_grad()
@autocast_map_only
def anderson(
    g: Map,
    x0: Tensor,
    *,
    memory: int = 5,
    tolerance: float = 1e-4,
    iterations: int = 50,
    regularisation: float = 1e-4,
) -> FixedPoint:
    """x_{n+1} = sum_i a_i g(x_i), a = argmin |sum_i a_i (g(x_i) - x_i)|, sum_i a_i = 1, over the last `memory` states.

    For a linear g it is GMRES. When the residual of a sample grows, its history is dropped and its next step is a plain
    iteration: near a saddle the plain iteration moves away, as the trajectory does, and the extrapolation would not.

    Args:
        g: states and the indices of their samples in the batch to the next states.
        x0: initial states [batch, ...].
        memory: how many states are combined.
        tolerance: the largest residual |g(x) - x| / |x| of a converged sample.
        iterations: the largest number of evaluations of g.
        regularisation: added to the diagonal of the least-squares problem, relative to its largest entry.
    """
    state, x = FixedPointState(g, x0), x0.flatten(1)
    # The history is a ring buffer: g(x), g(x) - x [sample, memory, number], and the inner products of the latter.
    # `valid` marks the entries that a sample uses.
    images = x.new_zeros(len(x), memory, x.shape[1])
    deltas, valid = torch.zeros_like(images), images.new_zeros(images.shape[:2], dtype=torch.bool)
    products = images.new_zeros(len(x), memory, memory, dtype=torch.float64)
    last = state.residual
    for n in range(iterations):
        slot, image = n % memory, state.evaluate(x)
        images[:, slot] = image
        delta = torch.sub(image, x, out=deltas[:, slot])
        products[:, slot] = products[:, :, slot] = (deltas @ delta[:, :, None]).squeeze(2).double()
        error = state.update_best(x, delta)
        valid &= (error <= last)[:, None]
        valid[:, slot] = True
        images, deltas, products, valid, last = state.compact(error > tolerance, images, deltas, products, valid, error)
        if state.finished:
            break
        x, finite = state.replace_nonfinite(_anderson_mix(images, products, valid, regularisation))
        valid &= finite
    return state.result()


def _anderson_mix(images: Tensor, products: Tensor, valid: Tensor, regularisation: float) -> Tensor:
    """sum_i a_i g(x_i) with the weights of the smallest residual over the valid states; g(x) if there is only one."""
    products = torch.where(valid[:, :, None] & valid[:, None], products, 0.0)
    largest = products.diagonal(dim1=1, dim2=2).amax(dim=1).clamp_min(1e-300)
    # An invalid state has a row of zeros; a one on its diagonal and a zero on the right make its weight zero.
    diagonal = torch.where(valid, regularisation, 1.0 + regularisation).double()
    system = products / largest[:, None, None] + torch.diag_embed(diagonal)
    # `solve_ex` does not check for singular matrices, which would wait for the device; this one is never singular.
    weights = torch.linalg.solve_ex(system, valid.double()).result
    weights = (weights / weights.sum(dim=1, keepdim=True)).to(images.dtype)
    return (weights[:, None] @ images).squeeze(1)


@SEARCHES.register("broyden")
@torch.no_grad()
@autocast_map_only
def broyden(g: Map, x0: Tensor, *, memory: int = 12, tolerance: float = 1e-4, iterations: int = 50) -> FixedPoint:
    """x_{n+1} = x_n - H_n r_n, r = g(x) - x; H_0 = -1, and H_{n+1} = H_n + (d - H_n y) (d^T H_n) / (d^T H_n y).

    d is the last step and y its change of r (Broyden 1965, the "good" update; Bai et al. 2019). H is -1 plus `memory`
    products u v^T; the oldest is dropped, so that memory is bounded. When the residual of a sample grows by more than
    `BROYDEN_GROWTH`, its history is dropped and its next step is a plain iteration, x_{n+1} = g(x_n).

    Args:
        g, x0, tolerance, iterations: as for `anderson`.
        memory: how many rank-one updates are kept.
    """
    state, x = FixedPointState(g, x0), x0.flatten(1)
    left = x.new_zeros(len(x), memory, x.shape[1])  # u, newest first
    right = torch.zeros_like(left)  # v
    step, delta, last = torch.zeros_like(x), torch.zeros_like(x), state.residual
    for _ in range(iterations):
        before, delta = delta, state.evaluate(x) - x
        error, change = state.update_best(x, delta), delta - before
        h_change = _inverse_times(left, right, change)  # H y
        step_h = _inverse_times(right, left, step)  # H^T d
        size = (step * h_change).sum(dim=1, keepdim=True)
        # No division by numbers as small as rounding errors: a map without a fixed point would seem to have one.
        safe = size.abs() > torch.finfo(x.dtype).eps ** 0.5 * step.square().sum(dim=1, keepdim=True)
        u = torch.where(safe, (step - h_change) / torch.where(safe, size, 1.0), 0.0)
        left, right = (torch.cat([new[:, None], old[:, :-1]], dim=1) for new, old in ((u, left), (step_h, right)))
        valid = (torch.isfinite(u + step_h).all(dim=1) & (error <= BROYDEN_GROWTH * last))[:, None, None]
        left, right = torch.where(valid, left, 0.0), torch.where(valid, right, 0.0)

        x, delta, left, right, last = state.compact(error > tolerance, x, delta, left, right, error)
        if state.finished:
            break
        after, _ = state.replace_nonfinite(x - _inverse_times(left, right, delta))
        x, step = after, after - x
    return state.result()


def _inverse_times(left: Tensor, right: Tensor, x: Tensor) -> Tensor:
    """H x = (-1 + sum_i u_i v_i^T) x."""
    return ((right @ x[..., None]).mT @ left).squeeze(1) - x


@SEARCHES.register("newton_krylov")
@torch.no_grad()
@autocast_map_only
def newton_krylov(g: Map, x0: Tensor, *, inner: int = 6, tolerance: float = 1e-4, iterations: int = 50) -> FixedPoint:
    """x_{n+1} = x_n + d, (1 - J) d = g(x_n) - x_n, J = g'(x_n), by `inner` steps of GMRES (Knoll and Keyes 2004).

    J v = (g(x + e v) - g(x)) / e needs neither a derivative of g nor a matrix. A step that increases the residual is
    replaced by a plain iteration, x_{n+1} = g(x_n).

    Args:
        g, x0, tolerance, iterations: as for `anderson`; `iterations` counts every evaluation of g.
        inner: how many directions GMRES uses in a step; each costs an evaluation.
    """
    state, x = FixedPointState(g, x0), x0.flatten(1)
    plain, last, budget = x, state.residual, iterations
    while budget > 0:
        image, budget = state.evaluate(x), budget - 1
        error = state.update_best(x, image - x)
        x, image, plain, error, last = state.compact(error > tolerance, x, image, plain, error, last)
        if state.finished:
            break
        directions = min(inner, budget - 1)  # one evaluation is kept for the residual of the result
        after = x + _gmres(state, x, image, directions) if directions > 0 else image
        budget -= max(directions, 0)
        rejected = error > last
        x, _ = state.replace_nonfinite(torch.where(rejected[:, None], plain, after))
        plain, last = image, torch.where(rejected, torch.inf, error)
    return state.result()


def _gmres(state: FixedPointState, x: Tensor, image: Tensor, directions: int) -> Tensor:
    """d + (r - A d), where d in span(r, A r, ...) minimises |r - A d|; A = 1 - J, r = g(x) - x."""
    tiny, root_eps = torch.finfo(x.dtype).tiny, torch.finfo(x.dtype).eps ** 0.5
    delta = image - x
    size = delta.norm(dim=1)
    # The step of the finite difference, large enough for rounding errors of eps |x|.
    distance = root_eps * torch.maximum(x.norm(dim=1), size).clamp_min(tiny)[:, None]
    basis = [delta / size.clamp_min(tiny)[:, None]]
    hessenberg = x.new_zeros(len(x), directions + 1, directions, dtype=torch.float64)
    for column in range(directions):
        v = basis[-1]
        w = v - (state.evaluate(x + distance * v) - image) / distance
        for row, u in enumerate(basis):
            overlap = (u * w).sum(dim=1)
            hessenberg[:, row, column] = overlap.double()
            w = w - overlap[:, None] * u
        length = w.norm(dim=1)
        hessenberg[:, column + 1, column] = length.double()
        basis.append(w / length.clamp_min(tiny)[:, None])
    target = torch.zeros_like(hessenberg[:, :, 0])
    target[:, 0] = size.double()
    finite = torch.isfinite(hessenberg).all(dim=2).all(dim=1)
    hessenberg = torch.where(finite[:, None, None], hessenberg, 0.0)
    # Singular values as small as the error of the differences count as zero: a map without a fixed point would seem to
    # have one far away.
    weights = torch.linalg.pinv(hessenberg, atol=10 * root_eps) @ target[..., None]
    coefficients = target[..., None] - hessenberg @ weights  # the remaining residual takes a plain step
    coefficients[:, :-1] += weights
    step = (torch.stack(basis, dim=1) * coefficients.to(x.dtype)).sum(dim=1)
    return torch.where(finite[:, None], step, delta)
