"""split -> n images -> x(0): what a report is measured on, drawn and embedded once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from odevit.analysis.load import image_processor
from odevit.analysis.subject import Subject
from odevit.data import Batches, DataSet, Images, make_batches
from odevit.data.stream import ImageStream
from odevit.shapes import Pixels

CACHED_STATES = 4 * 2**20
"""Bytes of states that are integrated together on a processor: more of them no longer fit into its cache."""
LARGEST_BATCH = 64
BATCH_ON_CUDA = 256

Chunk = dict[str, Tensor]
"""`x0` and `labels` of a few images."""


@dataclass(frozen=True)
class Sample:
    """Images in random order, so that the first n of them are a sample as well.

    Args:
        numbers: which images of the split.
        chunks: their embeddings and labels, a few at a time.
        batches: the images themselves, in the same portions.
        classes: the names of the labels.
        mean, std: pixel statistics they were normalised with.
        available: how many images the split has.
    """

    numbers: Tensor
    chunks: Sequence[Chunk]
    batches: Batches
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    available: int

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def labels(self) -> Tensor:
        """Of all images, on the CPU."""
        return torch.cat([chunk["labels"].cpu() for chunk in self.chunks])

    def first(self, count: int) -> Iterator[Chunk]:
        """The first `count` images, or as many as there are, portion by portion."""
        for chunk in self.chunks:
            if count <= 0:
                return
            yield {name: values[:count] for name, values in chunk.items()}
            count -= len(chunk["labels"])

    def pixels(self, count: int) -> Pixels:
        """The first `count` images, normalised."""
        found: list[Tensor] = []
        for batch in self.batches:
            found.append(batch["pixel_values"])
            if sum(map(len, found)) >= count:
                break
        return torch.cat(found)[:count]

    def pictures(self, count: int) -> Tensor:
        """The first `count` images as they can be looked at: [image, channel, height, width] in 0..1, on the CPU."""
        mean, std = (torch.tensor(each).view(-1, 1, 1) for each in (self.mean, self.std))
        return (self.pixels(count).cpu() * std + mean).clamp(0, 1)


@torch.no_grad()
def draw_sample(subject: Subject, data: DataSet, split: str, limit: int | None, seed: int) -> Sample:
    """`limit` images of a split, or all of them where there are no more, drawn with `seed` and embedded.

    They are normalised with the model's own statistics, not with those of the data: its weights were trained with them.
    """
    if split not in ("train", "validation", "test"):
        raise ValueError(f"split={split!r}; expected train, validation or test")
    if limit is not None and limit < 1:
        raise ValueError(f"limit={limit}; expected the number of images to look at, 1 or more")
    images = {"train": data.train, "validation": data.validation, "test": data.test}[split]
    if not len(images):
        raise ValueError(f"the {split} split of {data.name} is empty; pass another split=")
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    chosen = images.subset(order[:limit])
    processor = image_processor(subject)
    mean, std = tuple(processor.image_mean), tuple(processor.image_std)

    def batches_of(images: Images | ImageStream, size: int) -> Batches:
        return make_batches(images, size, mean=mean, std=std, num_classes=data.num_classes, device=subject.device)

    one = next(iter(batches_of(chosen.subset(torch.tensor([0])), 1)))
    batches = batches_of(chosen, _batch_size(subject, subject.embed(one["pixel_values"])))
    return Sample(
        numbers=order[:limit],
        chunks=[{"x0": subject.embed(batch["pixel_values"]), "labels": batch["labels"]} for batch in batches],
        batches=batches,
        classes=data.classes,
        mean=mean,
        std=std,
        available=len(images),
    )


def _batch_size(subject: Subject, state: Tensor) -> int:
    if subject.device.type == "cuda":
        return BATCH_ON_CUDA
    return max(1, min(LARGEST_BATCH, CACHED_STATES // (state.numel() * state.element_size())))
