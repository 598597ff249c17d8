"""ImageStream[i] = (decode(record i), label i): a set too large for memory, decoded when asked for."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor
from torch.utils.data import Dataset

from odevit.data.decode import UNREADABLE, Decoder, SizeError
from odevit.data.records import ChosenRecords, Records
from odevit.errors import OdeVitWarning


class ImageStream(Dataset[tuple[Tensor, int]]):
    """The lazy counterpart of `Images`: the same labels, length and `subset`, pixels one image at a time.

    An image that cannot be read is an error with its name. With `skip_unreadable` the next readable image
    takes its place, with its own label, and a warning says so: a batch keeps its size.
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
        chosen = ChosenRecords(self.records, indices)
        return ImageStream(chosen, self.decoder, skip_unreadable=self.skip_unreadable)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Pixels uint8 [C, S, S] and the label."""
        for offset in range(len(self)):
            at = (index + offset) % len(self)
            try:
                pixels = self.decoder(self.records.read(at))
            except SizeError as error:
                raise ValueError(f"{self.records.name(at)}: {error}") from error
            except UNREADABLE as error:
                said = f"{self.records.name(at)} cannot be read ({error})"
                if not self.skip_unreadable:
                    raise ValueError(f"{said}. Replace it, or say skip_unreadable=True.") from error
                warnings.warn(f"{said}; the next image takes its place", OdeVitWarning, stacklevel=2)
                continue
            return torch.tensor(pixels), int(self.labels[at])
        raise ValueError(f"none of the {len(self)} images can be read; check the files.")
