"""x -> (augment(x / 255) - mean) / std: batches ready for a model, made on the device.

An iterable of `{"pixel_values": float32 [B, C, H, W], "labels": ...}`. With an augmentation the labels are soft
targets float32 [B, K]; without one they are the integers, int64 [B]. Not a DataLoader: it would draw its order
from a generator, and a set that fits on the device needs no workers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from odevit.data.augment.policy import Augmentation
from odevit.data.images import Images
from odevit.data.plan import EpochPlan

if TYPE_CHECKING:
    from odevit.data.stream import ImageStream

Batch = dict[str, Tensor]


class Batches(ABC):
    """The batches of an epoch: the same for the same (seed, epoch), on every process and from any starting point.

    Args:
        images: the images to draw from.
        batch_size: samples per batch on this process.
        augmentation: None for evaluation.
        mean, std: per channel, fractions of full scale, as in `DataSet`.
        num_classes: length of a soft target.
        seed: decides the order and the augmentation.
        device: where batches are made.
        shuffle: a new order in each epoch.
        drop_last: leave out a partial last batch.
        rank, world: the number of this process, and how many there are.
        repeats: copies of a sample in a batch; None takes the augmentation's.
        indices: also name the samples of a batch, under "index".
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
        repeats: int | None = None,
        indices: bool = False,
    ) -> None:
        if repeats is None:
            repeats = 1 if augmentation is None else augmentation.repeats
        if len(mean) != images.channels or len(std) != images.channels:
            raise ValueError(
                f"mean has {len(mean)} and std {len(std)} numbers; the images have {images.channels} channels"
            )
        self.plan = EpochPlan(
            len(images), batch_size, shuffle, drop_last, seed=seed, rank=rank, world=world, repeats=repeats
        )
        self.device = torch.device(device)
        self.augmentation = augmentation
        self.num_classes = num_classes
        self.indices = indices
        self.epoch = 0
        self._start = 0
        self._mean = torch.tensor(mean, dtype=torch.float32, device=self.device)[:, None, None]
        self._std = torch.tensor(std, dtype=torch.float32, device=self.device)[:, None, None]

    @property
    def batch_size(self) -> int:
        return self.plan.batch_size

    def __len__(self) -> int:
        """Batches in a whole epoch, wherever the next pass starts."""
        return len(self.plan)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass; passes do not advance it."""
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
            # Hashed by the position in the epoch, not by the sample: copies of a sample then differ.
            images, labels = self.augmentation(
                images, labels, self.num_classes, seed=self.plan.seed, epoch=epoch, index=positions
            )
        batch = {"pixel_values": (images - self._mean) / self._std, "labels": labels}
        return batch | {"index": samples} if self.indices else batch


class DeviceBatches(Batches):
    """Batches of images that all lie on the device as uint8: choosing, augmenting and normalising happen there.

    On CUDA the next batch is made ahead on a side stream, unless `prefetch=False`; `options` as in `Batches`.
    """

    def __init__(self, images: Images, batch_size: int, *, prefetch: bool | None = None, **options: Any) -> None:
        super().__init__(images, batch_size, **options)
        on_cuda = self.device.type == "cuda"
        if prefetch and not on_cuda:
            raise ValueError(f"prefetch=True needs a CUDA device; the batches are made on {self.device}")
        self.prefetch = on_cuda if prefetch is None else prefetch
        self.images = images.to(self.device)

    def _pass(self, epoch: int, numbers: range) -> Iterator[Batch]:
        order = self.plan.order(epoch, self.device)

        def make(number: int) -> Batch:
            positions = self.plan.positions(number, self.device)
            samples = self.plan.samples_at(positions, order)
            chosen = self.images.subset(samples)
            return self._finish(chosen.pixels, chosen.labels, epoch, positions, samples)

        if self.prefetch:
            return prefetched(make, numbers, self.device)
        return map(make, numbers)


def prefetched(make: Callable[[int], Batch], numbers: Iterable[int], device: torch.device) -> Iterator[Batch]:
    """make(b) for each b: batch b + 1 is made on a side stream while the model works on b. The host never waits."""
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))  # the images were put there by the current stream
    ahead: tuple[Batch, torch.cuda.Event] | None = None
    for number in numbers:
        with torch.cuda.stream(side):
            made = make(number)
            ready = side.record_event()
        if ahead is not None:
            yield _hand_over(*ahead, device)
        ahead = (made, ready)
    if ahead is not None:
        yield _hand_over(*ahead, device)


def _hand_over(batch: Batch, ready: torch.cuda.Event, device: torch.device) -> Batch:
    current = torch.cuda.current_stream(device)
    current.wait_event(ready)
    for tensor in batch.values():
        # Memory belongs to the stream that made it: tell the allocator who else reads it.
        tensor.record_stream(current)
    return batch
