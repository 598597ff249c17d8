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
COMPACTION_INTERVAL = 8
"""Those who are done leave together, as soon as they are one of so many: to take out one copies what all remember."""


class FixedPointState:
    """Who is still searching, and the best that everybody has found: a sample is done when its residual is small.

    States are vectors here, [sample, number]; those of `here` stand in its order. Who is done finds nothing better any
    more, whether others go on or not, and leaves with the next `CROWD`-th of those who are here.

    What is done in every step of a search is few operations that read little: a history of many states takes longer to
    read than a step of a small field takes to compute, and on a GPU to start an operation takes longer still.
    """

    def __init__(self, g: Map, x0: Tensor) -> None:
        self.g, self.shape = g, x0.shape
        self.here = torch.arange(len(x0), device=x0.device)
        self.best = x0.flatten(1)
        self.residual = torch.full((len(x0),), torch.inf, device=x0.device, dtype=torch.float32)
        self.taken, self.count = torch.zeros_like(self.here), 0
        self.searching, self.left = torch.ones_like(self.here, dtype=torch.bool), len(x0)
        self._found: tuple[Tensor, ...] | None = None

    def image(self, x: Tensor) -> Tensor:
        """g(x), counted."""
        self.count += 1
        return self.g(x.view(-1, *self.shape[1:]), self.here).flatten(1)

    def note(self, x: Tensor, gap: Tensor) -> Tensor:
        """|g(x) - x| / |x| of everybody here, from g(x) - x; infinite where there are no numbers."""
        # The smallest number in place of zero: gradients, of which some are tiny, are searched for in the same way.
        length = x.norm(dim=1).clamp_min(torch.finfo(x.dtype).tiny)
        error = (gap.norm(dim=1) / length).float().nan_to_num(torch.inf, torch.inf)
        # Chosen, not picked out: to count who is better, a GPU would have to be waited for.
        better = self.searching & (error < self.residual)
        self.best = torch.where(better[:, None], x, self.best)
        self.residual = torch.where(better, error, self.residual)
        return error

    def keep(self, stay: Tensor, *of: Tensor) -> tuple[Tensor, ...]:
        """The others are done; what is left of tensors [sample, ...] when those have left who do so now."""
        self.taken = torch.where(self.searching, self.count, self.taken)
        self.searching = self.searching & stay
        self.left = int(self.searching.sum())  # the one time in a step that the device is waited for
        if self.over or COMPACTION_INTERVAL * self.left > (COMPACTION_INTERVAL - 1) * len(self.here):
            return of
        self._write()
        left = self.searching.nonzero().squeeze(1)
        self.best, self.residual, self.taken = self.best[left], self.residual[left], self.taken[left]
        self.here, self.searching = self.here[left], self.searching[left]
        return tuple(tensor[left] for tensor in of)

    @property
    def over(self) -> bool:
        """Whether everybody is done."""
        return self.left == 0

    def sound(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x, with the best state known where it is not finite, and where it is [sample, 1]."""
        # One number that is not finite is enough; a sum in half precision would not be finite by itself.
        precise = torch.promote_types(x.dtype, torch.float32)
        finite = torch.isfinite(x.sum(dim=1, keepdim=True, dtype=precise))
        return torch.where(finite, x, self.best), finite

    def end(self) -> FixedPoint:
        self.taken = torch.where(self.searching, self.count, self.taken)
        best, residual, taken = self._write()
        return FixedPoint(best.view(self.shape), residual, taken)

    def _write(self) -> tuple[Tensor, ...]:
        """What everybody has found, with the latest of those who are here."""
        latest = self.best, self.residual, self.taken
        if self._found is None:
            self._found = latest  # nobody has left yet
        else:
            for found, part in zip(self._found, latest, strict=True):
                found.index_copy_(0, self.here, part)
        return self._found
