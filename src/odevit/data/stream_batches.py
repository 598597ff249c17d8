"""Batches of an ImageStream: decoded by DataLoader workers, augmented and normalised on the device."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Unpack

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from odevit.data.batches import Batches, BatchOptions, DeviceBatches
from odevit.data.images import Images
from odevit.data.prefetch import Batch
from odevit.data.stream import ImageStream


class StreamBatches(Batches):
    """The batches `DeviceBatches` would make of the same images in the same order, for sets of any size.

    Only where the images lie in blocks (parquet row groups) does shuffling differ: see `EpochPlan.order`.
    `workers` is the number of decoding processes; 0 decodes in this one.
    """

    def __init__(
        self,
        images: ImageStream,
        batch_size: int,
        *,
        workers: int | None = None,
        **options: Unpack[BatchOptions],
    ) -> None:
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
            collate_fn=_Collate(self.images.channels, *self.images.size),
            # Its own generator: a loader otherwise draws from the global one, and with it changes the dropout.
            generator=torch.Generator().manual_seed(self.plan.seed),
            pin_memory=on_cuda,  # lets the copy run beside the model
        )
        for number, (pixels, labels) in zip(numbers, loader, strict=True):
            positions = self.plan.positions(number, self.device)
            pixels = pixels.to(self.device, non_blocking=on_cuda)
            labels = labels.to(self.device, non_blocking=on_cuda)
            samples = self.plan.samples_at(positions.cpu(), order).to(self.device)
            yield self._finish(pixels, labels, epoch, positions, samples)


class _Collate:
    """Pairs to one batch; knows the shape of an image, so that a batch may be empty. A class, to be pickled."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def __call__(self, pairs: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
        pixels = torch.empty(len(pairs), *self.shape, dtype=torch.uint8)
        for row, (image, _) in enumerate(pairs):
            pixels[row] = image
        return pixels, torch.tensor([label for _, label in pairs], dtype=torch.int64)


def make_batches(
    images: Images | ImageStream,
    batch_size: int,
    *,
    workers: int | None = None,
    **options: Unpack[BatchOptions],
) -> Batches:
    """`DeviceBatches` of images in memory, `StreamBatches` of a stream: one contract, see `Batches`."""
    if isinstance(images, Images):
        return DeviceBatches(images, batch_size, **options)
    return StreamBatches(images, batch_size, workers=workers, **options)
