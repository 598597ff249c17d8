"""DataSet = (train, validation, test), the class names, and the pixel statistics of train.

A split is `Images`, decoded in memory, or an `ImageStream`, decoded on access.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.data import Dataset

from odevit.data.records import UNREADABLE, JoinedRecords, Records, SizeError
from odevit.errors import OdeVitWarning

if TYPE_CHECKING:
    from odevit.data.decode import Decoder

_SMALLEST_STD = 1 / 255  # a constant channel must not lead to a division by zero
_SAMPLE = 4096
_BLOCKS = 16


@dataclass(frozen=True)
class Images:
    """Decoded images in memory: `pixels` uint8 [N, C, H, W] and `labels` int64 [N]."""

    pixels: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.pixels.dtype != torch.uint8 or self.pixels.ndim != 4:
            raise ValueError(
                f"pixels are {self.pixels.dtype} {list(self.pixels.shape)}; expected torch.uint8 [N, C, H, W]"
                " with values 0..255"
            )
        if self.labels.dtype != torch.int64 or self.labels.shape != self.pixels.shape[:1]:
            raise ValueError(
                f"labels are {self.labels.dtype} {list(self.labels.shape)}; expected torch.int64"
                f" [{len(self.pixels)}], one per image"
            )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def channels(self) -> int:
        return self.pixels.shape[1]

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.pixels.shape[2], self.pixels.shape[3]

    def to(self, device: torch.device | str) -> Images:
        """The same images on another device."""
        return Images(self.pixels.to(device), self.labels.to(device))

    def with_labels(self, labels: Tensor) -> Images:
        """The same images with other labels."""
        return Images(self.pixels, labels)

    def concatenate(self, more: Images) -> Images:
        """These images followed by `more`."""
        return Images(torch.cat([self.pixels, more.pixels]), torch.cat([self.labels, more.labels]))

    def subset(self, indices: Tensor) -> Images:
        """The images at `indices` (int64), in that order."""
        indices = indices.to(self.labels.device)
        return Images(self.pixels[indices], self.labels[indices])


@dataclass(frozen=True, eq=False)
class ImageStream(Dataset[tuple[Tensor, int]]):
    """stream[i] = (decode(record i), label i): the lazy counterpart of `Images`, for a set too large for memory.

    An unreadable image raises an error with its name. With `skip_unreadable`, the next readable image takes its place,
    with its own label and a warning, so that batches keep their size.
    """

    records: Records
    decoder: Decoder
    skip_unreadable: bool = False

    def __len__(self) -> int:
        return len(self.records)

    @property
    def labels(self) -> Tensor:
        return self.records.labels

    @property
    def channels(self) -> int:
        return self.decoder.channels

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.decoder.size, self.decoder.size

    def with_labels(self, labels: Tensor) -> ImageStream:
        """The same images with other labels."""
        return replace(self, records=self.records.with_labels(labels))

    def concatenate(self, more: ImageStream) -> ImageStream:
        """These images followed by `more`."""
        return replace(self, records=JoinedRecords([self.records, more.records]))

    def subset(self, indices: Tensor) -> ImageStream:
        """The images at `indices` (int64), in that order."""
        return replace(self, records=self.records.subset(indices))

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Pixels uint8 [C, S, S] and the label."""
        for offset in range(len(self)):
            at = (index + offset) % len(self)
            try:
                return torch.tensor(self.decoder(self.records.read(at))), int(self.labels[at])
            except SizeError as error:
                raise ValueError(f"{self.records.name(at)}: {error}") from error
            except UNREADABLE as error:
                problem = f"{self.records.name(at)} cannot be read ({error})"
                if not self.skip_unreadable:
                    raise ValueError(
                        f"{problem}. Replace it, or set skip_unreadable=True (typed: data.skip_unreadable=true)."
                    ) from error
                warnings.warn(f"{problem}; the next image takes its place", OdeVitWarning, stacklevel=2)
        raise ValueError(f"none of the {len(self)} images can be read; check the files.")


@dataclass(frozen=True)
class DataSet:
    """A data set for training and evaluation.

    `validation` is held out of the training split to choose models by, and may have length 0; `test` is used once, at
    the end. `mean` and `std` are fractions of full scale, one per channel, measured on `train` only.
    """

    name: str
    train: Images | ImageStream
    validation: Images | ImageStream
    test: Images | ImageStream
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    image_size: int
    channels: int

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    def __str__(self) -> str:
        return (
            f"{self.name}: {len(self.train):,} train, {len(self.validation):,} validation,"
            f" {len(self.test):,} test; {self.num_classes} classes,"
            f" {self.channels}x{self.image_size}x{self.image_size}"
        )


def channel_statistics(
    images: Images | ImageStream, *, chunk: int = 4096
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """mean_c = sum_k k h_c(k) / n and std_c = sqrt(sum_k (k - mean_c)^2 h_c(k) / n), h_c the histogram of channel c.

    Fractions of full scale (255), float64. Histograms keep the sums in integers: the result is exact and independent
    of `chunk`. Of a stream, whose images must be decoded first, about 4096 images are counted.
    """
    pixels: Iterable[Tensor]
    if isinstance(images, Images):
        pixels = images.pixels.split(chunk)
    else:
        pixels = (images[index][0][None] for index in images.records.sample_indices(_SAMPLE, _BLOCKS))
    histogram = torch.zeros(images.channels, 256, dtype=torch.int64)
    for some in pixels:
        channels = some.transpose(0, 1).flatten(1).cpu()
        histogram += torch.stack([torch.bincount(channel, minlength=256) for channel in channels])
    levels = torch.arange(256, dtype=torch.float64) / 255
    weights = histogram.double() / histogram.sum(1, keepdim=True)
    mean = (weights * levels).sum(1)
    variance = (weights * (levels - mean[:, None]).square()).sum(1)
    std = variance.sqrt().clamp(min=_SMALLEST_STD)
    return tuple(mean.tolist()), tuple(std.tolist())
