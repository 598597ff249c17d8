"""x = g(x): what every search for a fixed point has in common, every sample for itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from odevit.registry import Registry

Map = Callable[[Tensor, Tensor], Tensor]
"""g: states and the numbers of their samples in the batch to the next states."""


@dataclass(frozen=True)
class FixedPoint:
    """The best x of each sample, its residual |g(x) - x| / |x|, and how often g was evaluated for it."""

    state: Tensor
    residual: Tensor
    evaluations: Tensor


class Search(Protocol):
    """x0 [batch, ...] to a fixed point: residuals below `tolerance`, or `iterations` evaluations of g, end it."""

    def __call__(self, g: Map, x0: Tensor, *, tolerance: float = ..., iterations: int = ...) -> FixedPoint: ...


SEARCHES: Registry[Search] = Registry("search")


class Hunt:
    """Who is still searching, and the best that everybody has found: a sample leaves when its residual is small.

    States are vectors here, [sample, number]; those of whoever is still searching stand in the order of `here`. What is
    done in every step of a search is few operations: on a GPU, to start them takes longer than to compute them.
    """

    def __init__(self, g: Map, x0: Tensor) -> None:
        self.g, self.shape = g, x0.shape
        self.here = torch.arange(len(x0), device=x0.device)
        self.best = x0.flatten(1).clone()
        self.residual = torch.full((len(x0),), torch.inf, device=x0.device, dtype=torch.float32)
        self.taken, self.count = torch.zeros_like(self.here), 0

    def image(self, x: Tensor) -> Tensor:
        """g(x), counted."""
        self.count += 1
        return self.g(x.view(-1, *self.shape[1:]), self.here).flatten(1)

    def note(self, x: Tensor, image: Tensor) -> Tensor:
        """|g(x) - x| / |x| of everybody here; infinite where there are no numbers."""
        # The smallest number in place of zero: gradients, of which some are tiny, are searched for in the same way.
        length = x.norm(dim=1).clamp_min(torch.finfo(x.dtype).tiny)
        error = ((image - x).norm(dim=1) / length).float().nan_to_num(torch.inf, torch.inf)
        # Chosen, not picked out: to count who is better, a GPU would have to be waited for.
        best, residual = self.best[self.here], self.residual[self.here]
        better = error < residual
        self.best.index_copy_(0, self.here, torch.where(better[:, None], x, best))
        self.residual.index_copy_(0, self.here, torch.where(better, error, residual))
        return error

    def keep(self, stay: Tensor, *of: Tensor) -> tuple[Tensor, ...]:
        """Let the others go; what is left of tensors [sample, ...] when they are gone."""
        left = stay.nonzero().squeeze(1)  # the one time in a step that the device is waited for
        if len(left) == len(stay):
            return of
        self.taken.index_fill_(0, self.here, self.count)
        self.here = self.here[left]
        return tuple(tensor[left] for tensor in of)

    @property
    def over(self) -> bool:
        """Whether everybody is gone."""
        return len(self.here) == 0

    def sound(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x, with the best state known where it is not finite, and where it is [sample, 1]."""
        # One number that is not finite is enough; a sum in half precision would not be finite by itself.
        precise = torch.promote_types(x.dtype, torch.float32)
        finite = torch.isfinite(x.sum(dim=1, keepdim=True, dtype=precise))
        return torch.where(finite, x, self.best[self.here]), finite

    def end(self) -> FixedPoint:
        self.taken.index_fill_(0, self.here, self.count)
        return FixedPoint(self.best.view(self.shape), self.residual, self.taken)
