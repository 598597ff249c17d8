"""held(c) = round(fraction * n_c) samples of each class c, the same ones for the same seed.

The part models are chosen by is always taken from the training part, never from the test part.
"""

from __future__ import annotations

import torch
from torch import Tensor

from odevit.data.random import SPLIT_STREAM, permutation


def stratified_split(labels: Tensor, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Indices (kept, held), int64, each ascending, disjoint, together all of them.

    Each class gives its share, at least one sample when it has two or more; a class of one sample keeps it.
    """
    count = len(labels)
    order = permutation(seed, 0, count, stream=SPLIT_STREAM)
    by_class = order[labels[order].argsort(stable=True)]  # classes in turn, random order inside each
    sizes = torch.bincount(labels)
    start = sizes.cumsum(0) - sizes
    rank = torch.arange(count) - start[labels[by_class]]
    share = (sizes * fraction).round().long()
    if fraction > 0:
        share = share.clamp(min=1)
    share = torch.minimum(share, (sizes - 1).clamp(min=0))
    taken = rank < share[labels[by_class]]
    return by_class[~taken].sort().values, by_class[taken].sort().values
