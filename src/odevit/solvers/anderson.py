"""x = g(x): Anderson's acceleration of the fixed-point iteration, every sample for itself."""

from __future__ import annotations

import torch
from torch import Tensor

from odevit.solvers.fixed_point import SEARCHES, FixedPoint, FixedPointState, Map
from odevit.solvers.precision import only_inside


@SEARCHES.register("anderson")
@torch.no_grad()
@only_inside
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

    For a linear g it is GMRES. Samples whose residual is below the tolerance leave the batch. When its residual grows,
    a sample forgets its history and goes on with the plain iteration from where it is: near a saddle the plain one
    leaves again, as the trajectory does, while an extrapolation would settle there.

    Args:
        g: states and the numbers of their samples in the batch to the next states.
        x0: where to begin [batch, ...].
        memory: how many states are combined.
        tolerance: of the residual |g(x) - x| / |x|.
        iterations: at most so many evaluations of g.
        regularisation: added to the diagonal of the least-squares problem, relative to its largest entry.
    """
    search_state, x = FixedPointState(g, x0), x0.flatten(1)
    # History, one place after the other, then the first again: what g made of a state, and how far off that was,
    # [sample, memory, number], with the inner products of the latter. `known` says what a sample remembers.
    images = x.new_zeros(len(x), memory, x.shape[1])
    gaps, known = torch.zeros_like(images), images.new_zeros(images.shape[:2], dtype=torch.bool)
    products = images.new_zeros(len(x), memory, memory, dtype=torch.float64)
    last = search_state.residual
    for n in range(iterations):
        place, image = n % memory, search_state.image(x)
        images[:, place] = image
        gap = torch.sub(image, x, out=gaps[:, place])
        products[:, place] = products[:, :, place] = (gaps @ gap[:, :, None]).squeeze(2).double()
        error = search_state.note(x, gap)
        known &= (error <= last)[:, None]
        known[:, place] = True
        images, gaps, products, known, last = search_state.keep(error > tolerance, images, gaps, products, known, error)
        if search_state.over:
            break
        x, finite = search_state.sound(_combined(images, products, known, regularisation))
        known &= finite
    return search_state.end()


def _combined(images: Tensor, products: Tensor, known: Tensor, regularisation: float) -> Tensor:
    """sum_i a_i g(x_i) with the weights of the smallest residual among the known states; plain g(x) for one."""
    products = torch.where(known[:, :, None] & known[:, None], products, 0.0)
    largest = products.diagonal(dim1=1, dim2=2).amax(dim=1).clamp_min(1e-300)
    # An unknown state has a row of zeros; a one on its diagonal and a zero on the right leave its weight at zero.
    diagonal = torch.where(known, regularisation, 1.0 + regularisation).double()
    system = products / largest[:, None, None] + torch.diag_embed(diagonal)
    # `_ex`: `solve` itself would wait for the device to tell of matrices that have no inverse, and this one has.
    weights = torch.linalg.solve_ex(system, known.double()).result
    weights = (weights / weights.sum(dim=1, keepdim=True)).to(images.dtype)
    return (weights[:, None] @ images).squeeze(1)
