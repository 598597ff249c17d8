"""mean_c = sum_k k h_c(k) / n and std_c = sqrt(sum_k (k - mean_c)^2 h_c(k) / n), from histograms h_c.

Counting the 256 levels first keeps the sums in integers: the answer is exact and does not depend on the size
of the chunks. Levels are divided by 255, so both are fractions of full scale.
"""

from __future__ import annotations

import torch
from torch import Tensor

from odevit.data.images import Images
from odevit.data.stream import ImageStream

_SMALLEST_STD = 1 / 255  # a channel that never changes must not be divided by zero
_BLOCKS = 16


def channel_statistics(
    images: Images | ImageStream, *, chunk: int = 4096, sample: int = 4096
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel, float64, as fractions of full scale.

    Images in memory are all counted; of a stream, where every image must be decoded first, about `sample` are.
    """
    histogram = torch.zeros(images.channels, 256, dtype=torch.int64)
    if isinstance(images, Images):
        for start in range(0, len(images), chunk):
            histogram += _histogram(images.pixels[start : start + chunk])
    else:
        for index in _spread(images, sample):
            histogram += _histogram(images[index][0][None])
    return _moments(histogram)


def _spread(images: ImageStream, sample: int) -> list[int]:
    """Evenly spaced indices; where images lie in blocks, those of a few evenly spaced blocks."""
    blocks = images.blocks
    if blocks is None:
        return list(range(0, len(images), max(1, len(images) // sample)))
    present = blocks.unique()
    few = present[:: max(1, len(present) // _BLOCKS)]
    share = max(1, sample // len(few))
    return [index for block in few for index in (blocks == block).nonzero().flatten()[:share].tolist()]


def _histogram(pixels: Tensor) -> Tensor:
    channels = pixels.transpose(0, 1).flatten(1).cpu()
    return torch.stack([torch.bincount(channel, minlength=256) for channel in channels])


def _moments(histogram: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    levels = torch.arange(256, dtype=torch.float64) / 255
    weights = histogram.double() / histogram.sum(1, keepdim=True)
    mean = (weights * levels).sum(1)
    variance = (weights * (levels - mean[:, None]).square()).sum(1)
    std = variance.sqrt().clamp(min=_SMALLEST_STD)
    return tuple(mean.tolist()), tuple(std.tolist())
