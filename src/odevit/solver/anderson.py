"""x = g(x): Anderson's acceleration of the fixed-point iteration, every sample for itself."""

from __future__ import annotations

import torch
from torch import Tensor

from odevit.solver.fixed_point import SEARCHES, FixedPoint, Hunt, Map


@SEARCHES.register("anderson")
@torch.no_grad()
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
    hunt, x = Hunt(g, x0), x0.flatten(1)
    # History, newest first: states and what g made of them, [batch, memory, numbers]; `known` says how many are there.
    states = x.new_zeros(len(x), memory, x.shape[1])
    images = torch.zeros_like(states)
    known, last = torch.zeros_like(hunt.here), hunt.residual
    for _ in range(iterations):
        image = hunt.image(x)
        error = hunt.note(x, image)
        states = torch.cat([x[:, None], states[:, :-1]], dim=1)
        images = torch.cat([image[:, None], images[:, :-1]], dim=1)
        known = torch.where(error > last, 1, (known + 1).clamp_max(memory))

        stay = error > tolerance
        states, images, known, last = states[stay], images[stay], known[stay], error[stay]
        if not hunt.keep(stay):
            break
        x = _combined(states, images, known, regularisation)
        lost = ~torch.isfinite(x).all(dim=1)
        x, known = hunt.sound(x), torch.where(lost, 0, known)
    return hunt.end()


def _combined(states: Tensor, images: Tensor, known: Tensor, regularisation: float) -> Tensor:
    """sum_i a_i g(x_i) with the weights of the smallest residual among the known states; plain g(x) for one."""
    memory = states.shape[1]
    there = torch.arange(memory, device=states.device) < known[:, None]
    gaps = (images - states) * there[..., None]
    products = (gaps @ gaps.mT).double()
    largest = products.diagonal(dim1=1, dim2=2).amax(dim=1).clamp_min(1e-300)
    identity = torch.eye(memory, device=states.device, dtype=torch.float64)
    # An unknown state has a row of zeros; a one on its diagonal and a zero on the right leave its weight at zero.
    system = products / largest[:, None, None] + regularisation * identity + torch.diag_embed((~there).double())
    weights = torch.linalg.solve(system, there.double())
    total = weights.sum(dim=1, keepdim=True)
    weights = (weights / torch.where(total == 0, 1.0, total)).to(images.dtype)
    return (weights[:, None] @ images).squeeze(1)
