"""bytes, path or array -> uint8 [C, S, S], as an image processor makes it, S as asked for or common to all.

`datasets` could decode too, but it neither refuses 16 bits nor names the file that cannot be read.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image
from transformers.image_processing_utils import BaseImageProcessor

from odevit.data.records import Encoded, Records
from odevit.hf.processor import pixels_uint8, shape_of, square_processor, upright

UNREADABLE = (OSError, ValueError, SyntaxError, EOFError, struct.error, zlib.error, Image.DecompressionBombError)
"""What PIL raises on files that are missing, truncated, or not images; it has no common class for them."""

_PROBES = 64


class SizeError(Exception):
    """An image whose size is not the one expected. Not a ValueError, so that it never counts as unreadable."""


@dataclass(frozen=True)
class Decoder:
    """Turns encoded pictures into uint8 [C, S, S], by our own image processor unless another is given.

    With `resize=False` pictures of other sizes are an error.
    """

    size: int
    resize: bool = True
    processor: BaseImageProcessor | None = None

    @cached_property
    def channels(self) -> int:
        return shape_of(self._processor)[0]

    @cached_property
    def _processor(self) -> BaseImageProcessor:
        return self.processor or square_processor(self.size)

    def __call__(self, encoded: Encoded) -> np.ndarray:
        with open_image(encoded) as picture:
            if not self.resize and picture.size != (self.size, self.size):
                raise SizeError(
                    f"images have different sizes: {self.size}x{self.size} and"
                    f" {picture.width}x{picture.height}. Set image_size={self.size} (or another) to resize them."
                )
            return pixels_uint8(self._processor, picture)


def open_image(encoded: Encoded) -> Image.Image:
    """The picture, loaded, turned upright, in RGB; raises one of UNREADABLE."""
    if isinstance(encoded, np.ndarray):
        return upright(Image.fromarray(encoded))
    with Image.open(BytesIO(encoded) if isinstance(encoded, bytes) else encoded) as picture:
        picture.load()
        return upright(picture)


def read_picture(path: str | os.PathLike[str]) -> Image.Image:
    """The picture of a file in its own size, RGB, upright: as `predict` and `explore` see it."""
    try:
        return open_image(Path(path))
    except FileNotFoundError:
        raise ValueError(f"there is no image {os.fspath(path)!r}; expected the path of a PNG, JPEG, ...") from None
    except UNREADABLE as error:
        raise ValueError(f"{os.fspath(path)!r} cannot be read as an image: {error}") from error


def common_size(parts: Iterable[Records]) -> int:
    """The side all images seem to have, judging by some of each part."""
    sizes: set[tuple[int, int]] = set()
    for records in parts:
        for index in records.some(_PROBES):
            try:
                sizes.add(open_image(records.read(index)).size)
            except UNREADABLE:
                continue  # named and counted when everything is decoded
    if not sizes:
        raise ValueError("none of the images tried could be read; check the files, or set image_size=32 to go on")
    shown = ", ".join(f"{width}x{height}" for width, height in sorted(sizes)[:5])
    if len(sizes) > 1:
        raise ValueError(f"images have different sizes ({shown}); set image_size=224 (or another) to resize them.")
    width, height = sizes.pop()
    if width != height:
        raise ValueError(f"images are {shown}, not square; set image_size={min(width, height)} (or another).")
    return width
