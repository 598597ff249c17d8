"""ImageStream[i] = (decode(record i), label i): a set too large for memory, decoded when asked for.

`StreamBatches` decodes in DataLoader workers, then augments and normalises on the device like `DeviceBatches`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from odevit.data.batches import Batch, Batches, DeviceBatches
from odevit.data.decode import UNREADABLE, Decoder, SizeError
from odevit.data.images import Images
from odevit.data.records import Records
from odevit.errors import OdeVitWarning


class ImageStream(Dataset[tuple[Tensor, int]]):
    """The lazy counterpart of `Images`: the same labels, length and `subset`, but pixels one image at a time.

    An image that cannot be read raises an error with its name. With `skip_unreadable` the next readable image
    takes its place, with its own label and a warning, so that a batch keeps its size.
    """

    def __init__(self, records: Records, decoder: Decoder, *, skip_unreadable: bool = False) -> None:
        self.records = records
        self.decoder = decoder
        self.skip_unreadable = skip_unreadable

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

    @property
    def blocks(self) -> Tensor | None:
        """Number of the block each sample is read with, see `Records.blocks`."""
        return self.records.blocks

    def subset(self, indices: Tensor) -> ImageStream:
        """The images at `indices` (int64), in that order."""
        return ImageStream(self.records.subset(indices), self.decoder, skip_unreadable=self.skip_unreadable)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Pixels uint8 [C, S, S] and the label."""
        for offset in range(len(self)):
            at = (index + offset) % len(self)
            try:
                pixels = self.decoder(self.records.read(at))
            except SizeError as error:
                raise ValueError(f"{self.records.name(at)}: {error}") from error
            except UNREADABLE as error:
                problem = f"{self.records.name(at)} cannot be read ({error})"
                if not self.skip_unreadable:
                    raise ValueError(f"{problem}. Replace it, or set skip_unreadable=True.") from error
                warnings.warn(f"{problem}; the next image takes its place", OdeVitWarning, stacklevel=2)
                continue
            return torch.tensor(pixels), int(self.labels[at])
        raise ValueError(f"none of the {len(self)} images can be read; check the files.")


class StreamBatches(Batches):
    """The batches `DeviceBatches` would make of the same images in the same order, for sets of any size.

    Shuffling differs only where images lie in blocks (parquet row groups): see `EpochPlan.order`.
    `workers` is the number of decoding processes, 0 decodes in this one; `options` as in `Batches`.
    """

    def __init__(self, images: ImageStream, batch_size: int, *, workers: int | None = None, **options: Any) -> None:
        super().__init__(images, batch_size, **options)
        self.images = images
        self.workers = min(8, os.cpu_count() or 1) if workers is None else workers

    def _pass(self, epoch: int, numbers: range) -> Iterator[Batch]:
        order = self.plan.order(epoch, blocks=self.images.blocks)
        wanted = [self.plan.samples_at(self.plan.positions(number), order).tolist() for number in numbers]
        on_cuda = self.device.type == "cuda"
        loader: DataLoader[tuple[Tensor, int]] = DataLoader(
            self.images,
            batch_sampler=wanted,
            num_workers=self.workers,
            collate_fn=partial(_collate, (self.images.channels, *self.images.size)),
            # Its own generator: a loader otherwise draws from the global one, and thereby changes the dropout.
            generator=torch.Generator().manual_seed(self.plan.seed),
            pin_memory=on_cuda,  # lets the copy run beside the model
        )
        for number, (pixels, labels) in zip(numbers, loader, strict=True):
            positions = self.plan.positions(number, self.device)
            pixels = pixels.to(self.device, non_blocking=on_cuda)
            labels = labels.to(self.device, non_blocking=on_cuda)
            samples = self.plan.samples_at(positions.cpu(), order).to(self.device)
            yield self._finish(pixels, labels, epoch, positions, samples)


def _collate(shape: tuple[int, ...], pairs: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    """Stack (pixels, label) pairs; the shape of an image is given, as a batch may be empty."""
    pixels = torch.empty(len(pairs), *shape, dtype=torch.uint8)
    for row, (image, _) in enumerate(pairs):
        pixels[row] = image
    return pixels, torch.tensor([label for _, label in pairs], dtype=torch.int64)


def make_batches(
    images: Images | ImageStream, batch_size: int, *, workers: int | None = None, **options: Any
) -> Batches:
    """`DeviceBatches` for images in memory, `StreamBatches` for a stream; the options are those of `Batches`."""
    if isinstance(images, Images):
        return DeviceBatches(images, batch_size, **options)
    return StreamBatches(images, batch_size, workers=workers, **options)
