"""The order of samples in an epoch, and the positions of each rank: no data, no state.

    order      = permutation(seed, epoch)                  the samples of an epoch, a pure function of integers
    batch b    = positions [b G, (b + 1) G)                G = batch_size * world
    rank r     = its contiguous share of them              so the ranks together are the batch of one process

Samplers of torch and accelerate keep a generator and do not know blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from odevit.data.counter_rng import permutation
from odevit.errors import ConfigError, integer, validate

_BLOCK_STREAM = -3
_BLOCKS_AT_ONCE = 8  # fewer than `TableRecords` keeps open, so that none is read twice


@dataclass(frozen=True)
class EpochSampler:
    """The order of `samples` in batches. `drop_last` drops the last, partial batch."""

    samples: int
    batch_size: int
    shuffle: bool = False
    drop_last: bool = False
    seed: int = 0
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        problems = validate(self, {"batch_size": integer(1)})
        if self.samples < 1:
            problems.append("there are no images; expected one or more (validation=0 leaves none to validate on)")
        if not 0 <= self.rank < self.world:
            problems.append(f"rank={self.rank}, world={self.world}; expected 0 <= rank < world")
        if not problems and self.drop_last and self.samples < self.global_batch:
            problems.append(
                f"batch_size * world = {self.global_batch} is more than the {self.samples} images, and"
                f" drop_last leaves nothing; set batch_size={max(1, self.samples // self.world)} or less"
            )
        if problems:
            raise ConfigError("the batches", problems)

    @property
    def global_batch(self) -> int:
        return self.batch_size * self.world

    def __len__(self) -> int:
        """Batches in an epoch, the same for every rank."""
        if self.drop_last:
            return self.samples // self.global_batch
        return -(-self.samples // self.global_batch)

    def order(self, epoch: int, device: torch.device | str = "cpu", blocks: Tensor | None = None) -> Tensor:
        """The samples in the order of `epoch`, int64 [N].

        With `blocks` (the block that each sample is read with), blocks are shuffled and taken eight at a time, and the
        samples of these eight are shuffled together, so that each block is read once.
        """
        if not self.shuffle:
            return torch.arange(self.samples, device=device)
        order = permutation(self.seed, epoch, self.samples, device=device)
        if blocks is None:
            return order
        blocks = blocks.to(device)
        place = permutation(self.seed, epoch, int(blocks.max()) + 1, stream=_BLOCK_STREAM, device=device)
        window = place[blocks[order]] // _BLOCKS_AT_ONCE
        return order[window.argsort(stable=True)]

    def positions(self, batch: int, device: torch.device | str = "cpu") -> Tensor:
        """The positions of batch number `batch` that belong to this rank, int64.

        A partial last batch is shared evenly; it is empty for some ranks if it is smaller than `world`.
        """
        start = batch * self.global_batch
        count = min(self.global_batch, self.samples - start)
        first, end = count * self.rank // self.world, count * (self.rank + 1) // self.world
        return torch.arange(start + first, start + end, device=device)
