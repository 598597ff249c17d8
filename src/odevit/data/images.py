"""DataSet = (train, validation, test) of Images, the class names, and the pixel statistics of train."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from odevit.data.stream import ImageStream


@dataclass(frozen=True)
class Images:
    """Decoded pictures in memory: `pixels` uint8 [N, C, H, W] and `labels` int64 [N]."""

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

    def subset(self, indices: Tensor) -> Images:
        """The images at `indices` (int64), in that order."""
        indices = indices.to(self.labels.device)
        return Images(self.pixels[indices], self.labels[indices])


@dataclass(frozen=True)
class DataSet:
    """Everything training and evaluation need to know about a data set.

    `validation` is held out of the training part and decides which model is chosen (length 0 when none was asked
    for); `test` is read once, at the end. `mean` and `std` are fractions of full scale, one per channel, measured
    on `train` alone.
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
