"""Records: pictures not decoded yet, and their labels. Every source becomes these first."""

from __future__ import annotations

import copy
import os
import struct
import zlib
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

if TYPE_CHECKING:
    from datasets import Dataset

Encoded = bytes | Path | np.ndarray
"""A picture as it lies in the source: the bytes of a file, the path of one, or uint8 [H, W] or [H, W, 3]."""

UNREADABLE = (OSError, ValueError, SyntaxError, EOFError, struct.error, zlib.error, Image.DecompressionBombError)
"""What PIL raises on files that are missing, truncated, or not images; it has no common class for them."""


_ROWS = 256  # read together, as a row group would be: pictures that lie in no blocks of their own
_OPEN_SHARDS = 16  # kept by one reader: 16 of the hub's usual 100 to 1000 images are some megabytes


class SizeError(Exception):
    """An image whose size is not the one expected. Not a ValueError, so that it never counts as unreadable."""


class Records(ABC):
    """`read(i)` gives the i-th picture undecoded, `name(i)` what to call it in an error."""

    labels: Tensor
    blocks: Tensor | None = None
    """Number of the block each sample must be read with (int64 [N]); None when any order costs the same."""

    def sample_indices(self, count: int, blocks: int = 1) -> list[int]:
        """About `count` indices, evenly spread. Where samples lie in blocks, of a few: each of them is read whole."""
        if self.blocks is None:
            return list(range(0, len(self), max(1, len(self) // count)))
        present = self.blocks.unique()
        blocks = max(blocks, -(-count * len(present) // len(self)))  # more of them where they are small
        few = present[:: max(1, len(present) // blocks)]
        share = max(1, count // len(few))
        return [index for block in few for index in (self.blocks == block).nonzero().flatten()[:share].tolist()]

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def read(self, index: int) -> Encoded: ...

    @abstractmethod
    def name(self, index: int) -> str: ...

    def subset(self, indices: Tensor) -> Records:
        """The records at `indices` (int64), in that order."""
        return _Subset(self, indices)

    def with_labels(self, labels: Tensor) -> Records:
        """The same records with other labels."""
        records = copy.copy(self)
        records.labels = labels
        return records


class _Subset(Records):
    def __init__(self, records: Records, indices: Tensor) -> None:
        self.records = records
        self.indices = indices
        self.labels = records.labels[indices]
        self.blocks = None if records.blocks is None else records.blocks[indices]

    def read(self, index: int) -> Encoded:
        return self.records.read(int(self.indices[index]))

    def name(self, index: int) -> str:
        return self.records.name(int(self.indices[index]))


class ArrayRecords(Records):
    """Pictures that are arrays already: uint8 [N, H, W] or [N, H, W, 3]."""

    def __init__(self, arrays: np.ndarray, labels: Tensor) -> None:
        self.arrays = arrays
        self.labels = labels

    def read(self, index: int) -> Encoded:
        return self.arrays[index]

    def name(self, index: int) -> str:
        return f"image {index}"


class PathRecords(Records):
    """Pictures that are files."""

    def __init__(self, paths: Iterable[str | Path], labels: Tensor) -> None:
        # One object, which processes can share, and bytes: text would take four times as much.
        self.paths = np.array([os.fsencode(path) for path in paths], dtype=bytes)
        self.labels = labels

    def read(self, index: int) -> Encoded:
        return Path(self.name(index))

    def name(self, index: int) -> str:
        return os.fsdecode(self.paths[index])


class JoinedRecords(Records):
    """One after the other."""

    def __init__(self, parts: Sequence[Records]) -> None:
        self.parts = tuple(parts)
        self.starts = list(accumulate((len(part) for part in parts), initial=0))
        self.labels = torch.cat([part.labels for part in parts])
        if any(part.blocks is not None for part in parts):
            blocks, first = [], 0
            for part in parts:
                own = torch.arange(len(part)) // _ROWS if part.blocks is None else part.blocks
                blocks.append(own + first)
                first += int(own.max()) + 1
            self.blocks = torch.cat(blocks)

    def read(self, index: int) -> Encoded:
        part, place = self._place(index)
        return part.read(place)

    def name(self, index: int) -> str:
        part, place = self._place(index)
        return part.name(place)

    def _place(self, index: int) -> tuple[Records, int]:
        number = bisect_right(self.starts, index) - 1
        return self.parts[number], index - self.starts[number]


@dataclass(frozen=True)
class Shard:
    """`rows` rows that are read together: `open()` gives them as a `datasets.Dataset` with undecoded images.

    Row r is called "row `first` + r of `where`". Paths may be relative to `folder`.
    """

    open: Callable[[], Dataset]
    rows: int
    where: str
    first: int = 0
    folder: Path = Path()


class TableRecords(Records):
    """The column `column` of `shards`, one after another. Shards are opened when first read; the last few stay open.

    With `in_blocks` opening a shard is costly, and `blocks` says so.
    """

    def __init__(self, shards: Sequence[Shard], column: str, labels: Tensor, *, in_blocks: bool = False) -> None:
        self.shards = tuple(shards)
        self.column = column
        self.labels = labels
        self.starts = list(accumulate((shard.rows for shard in shards), initial=0))
        if in_blocks:
            self.blocks = torch.repeat_interleave(torch.tensor(self.starts).diff())
        self._images: OrderedDict[int, Any] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_images": OrderedDict()}  # a worker opens its own shards

    def read(self, index: int) -> Encoded:
        image = self._image(index) or {"bytes": None, "path": None}
        if image["bytes"] is not None:
            return image["bytes"]
        if image["path"] is not None:
            return self._shard(index)[1].folder / image["path"]
        raise ValueError(f"{self.name(index)} holds no image in column {self.column!r}")

    def name(self, index: int) -> str:
        number, shard = self._shard(index)
        return f"row {shard.first + index - self.starts[number]} of {shard.where}"

    def _shard(self, index: int) -> tuple[int, Shard]:
        number = bisect_right(self.starts, index) - 1
        return number, self.shards[number]

    def _image(self, index: int) -> Any:
        number, shard = self._shard(index)
        if number not in self._images:
            # The Arrow column, not dataset[row]: a row costs 10 microseconds instead of 60.
            self._images[number] = shard.open().with_format("arrow")[:].column(self.column)
            if len(self._images) > _OPEN_SHARDS:
                self._images.popitem(last=False)
        self._images.move_to_end(number)
        return self._images[number][index - self.starts[number]].as_py()


@dataclass(frozen=True)
class Source:
    """A data set located but not decoded; parts have the names they came with ("train", "test", "val", ...).

    `facts` is all that a cached copy depends on: the files with their sizes and times, the columns chosen.
    """

    name: str
    classes: tuple[str, ...]
    parts: Mapping[str, Records]
    facts: tuple[object, ...]
    files: tuple[Path, ...] = ()
    """The files that it is read from, where these are the user's own."""
