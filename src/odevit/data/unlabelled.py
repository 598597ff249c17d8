"""data + pictures of folders: more images to train on, without labels."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import accumulate, chain
from pathlib import Path

import torch
from transformers.image_processing_utils import BaseImageProcessor

from odevit.data.decode import Decoder
from odevit.data.decoding import decode_records
from odevit.data.images import DataSet, Images, ImageStream
from odevit.data.loading import report_unreadable
from odevit.data.records import Encoded, Records
from odevit.data.source import find_pictures

_ROWS = 256  # read together, as a row group would be: pictures that lie in no blocks of their own


def with_unlabelled(
    data: DataSet,
    folders: Sequence[str | Path],
    stream: Callable[[], DataSet],
    *,
    known: Collection[str] = (),
    processor: BaseImageProcessor | None = None,
    skip_unreadable: bool = False,
    resident_limit_gb: float = 4.0,
) -> DataSet:
    """The data whose training part also has every picture of these folders. Their labels are 0 and mean nothing.

    Args:
        data: in memory, or streamed.
        folders: pictures at any depth, and parquet files.
        stream: gives the same data as streams, for when everything together is too large for memory.
        known: files of the data itself, which are not taken a second time.
        processor, skip_unreadable, resident_limit_gb: as in `load_data`.
    """
    found = [find_pictures(Path(folder).expanduser(), known) for folder in folders]
    records = JoinedRecords([*chain.from_iterable(found)])
    decoder = Decoder(data.image_size, processor=processor)
    count = len(records) + len(data.train) + len(data.validation) + len(data.test)
    fits = count * decoder.channels * data.image_size**2 <= resident_limit_gb * 2**30
    if isinstance(data.train, Images) and fits:
        extra, complaints = decode_records(records, decoder, title="decoding unlabelled images")
        if complaints:
            report_unreadable(complaints, {"unlabelled": extra}, skip_unreadable)
        train = Images(torch.cat([data.train.pixels, extra.pixels]), torch.cat([data.train.labels, extra.labels]))
        return replace(data, train=train)
    streamed = data if isinstance(data.train, ImageStream) else stream()
    assert isinstance(streamed.train, ImageStream)
    joined = JoinedRecords([streamed.train.records, records])
    return replace(streamed, train=replace(streamed.train, records=joined, decoder=decoder))


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
