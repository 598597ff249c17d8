"""Records: encoded images with their labels, in memory, in files or in tables."""

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
"""An image as the source has it: the bytes of a file, its path, or uint8 [H, W] or [H, W, 3]."""

UNREADABLE = (OSError, ValueError, SyntaxError, EOFError, struct.error, zlib.error, Image.DecompressionBombError)
"""What PIL raises for files that are missing, truncated, or not images; these errors have no common class."""


_ROWS = 256  # of a block, for records that have no blocks of their own
_OPEN_SHARDS = 16  # kept by one reader: 16 of the hub's usual 100 to 1000 images are some megabytes


class SizeError(Exception):
    """An image whose size is not the one expected. Not a ValueError, so that it never counts as unreadable."""


class Records(ABC):
    """`read(i)` gives the i-th image encoded, `name(i)` its name for errors."""

    labels: Tensor
    blocks: Tensor | None = None
    """The block that each sample is read with, int64 [N]; None if all orders cost the same."""

    def sample_indices(self, count: int, blocks: int = 1) -> list[int]:
        """About `count` indices, evenly spread; with blocks, all from few of them, since each is read as a whole."""
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
    """Images in an array, uint8 [N, H, W] or [N, H, W, 3]."""

    def __init__(self, arrays: np.ndarray, labels: Tensor) -> None:
        self.arrays = arrays
        self.labels = labels

    def read(self, index: int) -> Encoded:
        return self.arrays[index]

    def name(self, index: int) -> str:
        return f"image {index}"


class PathRecords(Records):
    """Images in files."""

    def __init__(self, paths: Iterable[str | Path], labels: Tensor) -> None:
        # One array, which processes can share, of bytes: text takes four times as much.
        self.paths = np.array([os.fsencode(path) for path in paths], dtype=bytes)
        self.labels = labels

    def read(self, index: int) -> Encoded:
        return Path(self.name(index))

    def name(self, index: int) -> str:
        return os.fsdecode(self.paths[index])


class JoinedRecords(Records):
    """Several records, concatenated."""

    def __init__(self, members: Sequence[Records]) -> None:
        self.members = tuple(members)
        self.starts = list(accumulate(map(len, members), initial=0))
        self.labels = torch.cat([records.labels for records in members])
        if any(records.blocks is not None for records in members):
            blocks, first = [], 0
            for records in members:
                own = torch.arange(len(records)) // _ROWS if records.blocks is None else records.blocks
                blocks.append(own + first)
                first += int(own.max()) + 1
            self.blocks = torch.cat(blocks)

    def read(self, index: int) -> Encoded:
        records, inner = self._find(index)
        return records.read(inner)

    def name(self, index: int) -> str:
        records, inner = self._find(index)
        return records.name(inner)

    def _find(self, index: int) -> tuple[Records, int]:
        number = bisect_right(self.starts, index) - 1
        return self.members[number], index - self.starts[number]


@dataclass(frozen=True)
class Shard:
    """`rows` rows that are read together: `open()` returns a `datasets.Dataset` with encoded images.

    The name of row r is "row `first` + r of `where`". Paths may be relative to `folder`.
    """

    open: Callable[[], Dataset]
    rows: int
    where: str
    first: int = 0
    folder: Path = Path()


class TableRecords(Records):
    """A column of several shards. A shard is opened when it is first read; the last few stay open.

    `in_blocks`: opening a shard is costly, so each is a block.
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
        return self.__dict__ | {"_images": OrderedDict()}  # each worker opens its own shards

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
    """A data set located but not decoded; splits have their original names ("train", "test", "val", ...).

    `fingerprint` is all that a cached copy depends on: the files with their sizes and times, the columns chosen.
    """

    name: str
    classes: tuple[str, ...]
    splits: Mapping[str, Records]
    fingerprint: tuple[object, ...]
    files: tuple[Path, ...] = ()
    """The user's files that it is read from."""
