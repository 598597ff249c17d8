"""Records: images not decoded yet, and their labels. What every kind of source is turned into first."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

Encoded = bytes | Path | np.ndarray
"""A picture as it lies in the source: the bytes of a file, the path of one, or uint8 [H, W] or [H, W, 3]."""


class Records(ABC):
    """`read(i)` gives the i-th picture undecoded, `name(i)` what to call it in an error."""

    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def blocks(self) -> Tensor | None:
        """Number of the block each sample must be read with (int64 [N]), None when any order costs the same."""
        return None

    @abstractmethod
    def read(self, index: int) -> Encoded: ...

    @abstractmethod
    def name(self, index: int) -> str: ...


class ArrayRecords(Records):
    """Pictures that are arrays already: uint8 [N, H, W] or [N, H, W, 3]."""

    def __init__(self, arrays: np.ndarray, labels: Tensor) -> None:
        self.arrays = arrays
        self.labels = labels

    def read(self, index: int) -> Encoded:
        return self.arrays[index]

    def name(self, index: int) -> str:
        return f"image {index}"


class ChosenRecords(Records):
    """Some of the records of another, by index."""

    def __init__(self, records: Records, indices: Tensor) -> None:
        self.records = records
        self.indices = indices
        self.labels = records.labels[indices]

    @property
    def blocks(self) -> Tensor | None:
        blocks = self.records.blocks
        return None if blocks is None else blocks[self.indices]

    def read(self, index: int) -> Encoded:
        return self.records.read(int(self.indices[index]))

    def name(self, index: int) -> str:
        return self.records.name(int(self.indices[index]))


@dataclass(frozen=True)
class Source:
    """A data set found but not decoded: parts are named as found ("train", "test", "val", ...).

    `facts` is what a cached copy depends on: the files with their sizes and times, the columns chosen.
    """

    name: str
    classes: tuple[str, ...]
    parts: Mapping[str, Records]
    facts: tuple[object, ...]
