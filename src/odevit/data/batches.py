"""x -> (augment(x / 255) - mean) / std: batches ready for a model, made on the device.

An iterable of `{"pixel_values": float32 [B, C, H, W], "labels": ...}`. With an augmentation, labels are soft targets,
float32 [B, K]; without one they are integers, int64 [B]. Not a DataLoader, which draws its order from a generator; and
data that fits on the device needs no workers.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from odevit.data.augment.policy import Augmentation
from odevit.data.images import Images, ImageStream
from odevit.data.sampler import EpochSampler

Batch = dict[str, Tensor]


class Batches(ABC):
    """The batches of an epoch: a function of (seed, epoch), on every process and from any starting point.

    `batch_size` counts the samples on this process, number `rank` of `world`. Without `augmentation`, for evaluation,
    labels stay integers; with it `num_classes` is the length of a soft target. `mean` and `std` are fractions of full
    scale, one per channel, as in `DataSet`. `indices` also names the samples of a batch, under "index".
    """

    def __init__(
        self,
        images: Images | ImageStream,
        batch_size: int,
        *,
        augmentation: Augmentation | None = None,
        mean: Sequence[float],
        std: Sequence[float],
        num_classes: int,
        seed: int = 0,
        device: torch.device | str = "cpu",
        shuffle: bool = False,
        drop_last: bool = False,
        rank: int = 0,
        world: int = 1,
        indices: bool = False,
    ) -> None:
        if len(mean) != images.channels or len(std) != images.channels:
            raise ValueError(
                f"mean has {len(mean)} and std {len(std)} numbers; the images have {images.channels} channels"
            )
        self.sampler = EpochSampler(len(images), batch_size, shuffle, drop_last, seed, rank, world)
        self.batch_size = batch_size
        self.device = torch.device(device)
        self.augmentation = augmentation
        self.num_classes = num_classes
        self.indices = indices
        self.epoch = 0
        self._start = 0
        self._mean = torch.tensor(mean, dtype=torch.float32, device=self.device)[:, None, None]
        self._std = torch.tensor(std, dtype=torch.float32, device=self.device)[:, None, None]

    def __len__(self) -> int:
        """Batches in a whole epoch, wherever the next pass begins."""
        return len(self.sampler)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass; a pass does not advance it."""
        self.epoch = epoch

    def start_at(self, batch: int) -> None:
        """Begin the next pass at batch number `batch`; later passes begin at 0 again."""
        if not 0 <= batch <= len(self):
            raise ValueError(f"start_at({batch}); expected 0 to {len(self)}, the batches of an epoch")
        self._start = batch

    def __iter__(self) -> Iterator[Batch]:
        start, self._start = self._start, 0
        return self._pass(self.epoch, range(start, len(self)))

    @abstractmethod
    def _pass(self, epoch: int, numbers: range) -> Iterator[Batch]:
        """The batches `numbers` of `epoch`."""

    def _finish(self, pixels: Tensor, labels: Tensor, epoch: int, positions: Tensor, samples: Tensor) -> Batch:
        images = pixels.to(torch.float32).div_(255)
        if self.augmentation is not None:
            # Random numbers belong to the position in the epoch, so that neighbours, which are mixed, are random pairs.
            images, labels = self.augmentation(
                images, labels, self.num_classes, seed=self.sampler.seed, epoch=epoch, index=positions
            )
        batch = {"pixel_values": (images - self._mean) / self._std, "labels": labels}
        return batch | {"index": samples} if self.indices else batch


class DeviceBatches(Batches):
    """Batches of images that are on the device as uint8; they are selected, augmented and normalised there.

    On CUDA the next batch is made ahead on a side stream, unless `prefetch=False`. `options` are those of `Batches`.
    """

    def __init__(self, images: Images, batch_size: int, *, prefetch: bool | None = None, **options: Any) -> None:
        super().__init__(images, batch_size, **options)
        on_cuda = self.device.type == "cuda"
        if prefetch and not on_cuda:
            raise ValueError(f"prefetch=True needs a CUDA device; the batches are made on {self.device}")
        self.prefetch = on_cuda if prefetch is None else prefetch
        self.images = images.to(self.device)

    def _pass(self, epoch: int, numbers: range) -> Iterator[Batch]:
        order = self.sampler.order(epoch, self.device)

        def make(number: int) -> Batch:
            positions = self.sampler.positions(number, self.device)
            samples = order[positions]
            chosen = self.images.subset(samples)
            return self._finish(chosen.pixels, chosen.labels, epoch, positions, samples)

        return prefetched(make, numbers, self.device) if self.prefetch else map(make, numbers)


def prefetched(make: Callable[[int], Batch], numbers: Iterable[int], device: torch.device) -> Iterator[Batch]:
    """make(b) for each b: batch b + 1 is made on a side stream while the model works on b. The host does not wait."""
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))  # which copied the images to the device

    def begin(number: int) -> tuple[Batch, torch.cuda.Event]:
        with torch.cuda.stream(side):
            return make(number), side.record_event()

    try:
        begun = map(begin, numbers)
        ahead = next(begun, None)
        while ahead is not None:
            batch, ready = ahead
            ahead = next(begun, None)
            current = torch.cuda.current_stream(device)
            current.wait_event(ready)
            for tensor in batch.values():
                # Memory belongs to the stream that made it; the allocator must know that another one reads it.
                tensor.record_stream(current)
            yield batch
    finally:
        # After a stop before the end, the next batch is still being made from the epoch's order, whose memory is free
        # now: overwritten, it would hold indices out of range.
        torch.cuda.current_stream(device).wait_stream(side)


class StreamBatches(Batches):
    """The batches of `DeviceBatches`, for data of any size.

    DataLoader workers decode; images are augmented and normalised on the device. The order differs only for images in
    blocks (parquet row groups), see `EpochSampler.order`. `workers` is the number of decoding processes; 0 decodes in
    this one. `options` are those of `Batches`.
    """

    def __init__(self, images: ImageStream, batch_size: int, *, workers: int | None = None, **options: Any) -> None:
        super().__init__(images, batch_size, **options)
        self.images = images
        self.workers = min(8, os.cpu_count() or 1) if workers is None else workers

    def _pass(self, epoch: int, numbers: range) -> Iterator[Batch]:
        order = self.sampler.order(epoch, blocks=self.images.records.blocks)
        chosen = [order[self.sampler.positions(number)] for number in numbers]
        on_cuda = self.device.type == "cuda"
        loader: DataLoader[Any] = DataLoader(
            _WorkerErrors(self.images),
            batch_sampler=[samples.tolist() for samples in chosen],
            num_workers=self.workers,
            collate_fn=partial(_collate, (self.images.channels, *self.images.size)),
            # Without its own generator, a loader draws from the global one and changes the dropout.
            generator=torch.Generator().manual_seed(self.sampler.seed),
            pin_memory=on_cuda,  # so that copies run beside the model
        )
        for number, samples, found in zip(numbers, chosen, loader, strict=True):
            if isinstance(found, ValueError):
                raise found
            pixels, labels = (tensor.to(self.device, non_blocking=on_cuda) for tensor in found)
            positions = self.sampler.positions(number, self.device)
            yield self._finish(pixels, labels, epoch, positions, samples.to(self.device))


@dataclass(frozen=True)
class _WorkerErrors(Dataset[Any]):
    """Images, or the error of one: an error that is raised in a worker arrives with the worker's traceback."""

    images: ImageStream

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int] | ValueError:
        try:
            return self.images[index]
        except ValueError as error:
            return ValueError(str(error))  # without its cause, which may not be picklable


def _collate(shape: tuple[int, ...], pairs: list[Any]) -> tuple[Tensor, Tensor] | ValueError:
    """Stack (pixels, label) pairs; the shape is given because a batch may be empty."""
    for found in pairs:
        if isinstance(found, ValueError):
            return found
    pixels = torch.empty(len(pairs), *shape, dtype=torch.uint8)
    for row, (image, _) in enumerate(pairs):
        pixels[row] = image
    return pixels, torch.tensor([label for _, label in pairs], dtype=torch.int64)


def make_batches(
    images: Images | ImageStream, batch_size: int, *, workers: int | None = None, **options: Any
) -> Batches:
    """`DeviceBatches` for images in memory, `StreamBatches` for a stream; options are those of `Batches`."""
    if isinstance(images, Images):
        return DeviceBatches(images, batch_size, **options)
    return StreamBatches(images, batch_size, workers=workers, **options)
