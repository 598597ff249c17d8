"""bytes, path or array -> uint8 [3, S, S]: 8-bit RGB, upright, square, S as asked for or common to all.

Resizing takes the largest centred square and resamples it once with PIL's bicubic filter, which widens its
support when shrinking (antialiasing). A square image of side S passes untouched. `datasets` could decode too, but
it neither refuses 16 bits nor names the file that cannot be read.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from PIL import Image, ImageOps
from tqdm import tqdm  # type: ignore[import-untyped]

from odevit.data.images import Images
from odevit.data.records import Encoded, Records

UNREADABLE = (OSError, ValueError, SyntaxError, EOFError, struct.error, zlib.error, Image.DecompressionBombError)
"""What PIL raises on files that are missing, truncated, or not images; it has no common class for them."""

_EIGHT_BIT = frozenset({"1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV"})
_CHUNK = 2048
_PROBES = 64
_SMALL = 1 << 14  # bytes; threads that decode smaller pictures mostly wait for each other


class SizeError(Exception):
    """An image whose size is not the one expected. Not a ValueError, so that it never counts as unreadable."""


@dataclass(frozen=True)
class Decoder:
    """Turns encoded pictures into RGB, uint8 [3, S, S]. With `resize=False` other sizes are an error."""

    size: int
    resize: bool
    channels: ClassVar[int] = 3

    def __call__(self, encoded: Encoded) -> np.ndarray:
        with open_image(encoded) as picture:
            if not self.resize and picture.size != (self.size, self.size):
                raise SizeError(
                    f"images have different sizes: {self.size}x{self.size} and"
                    f" {picture.width}x{picture.height}. Set image_size={self.size} (or another) to resize them."
                )
            picture = picture.convert("RGB")
            if picture.size != (self.size, self.size):
                picture = _square(picture, self.size)
            return np.asarray(picture, dtype=np.uint8).transpose(2, 0, 1)


def open_image(encoded: Encoded) -> Image.Image:
    """The picture, loaded and turned upright; raises one of UNREADABLE."""
    if isinstance(encoded, np.ndarray):
        return Image.fromarray(encoded)
    with Image.open(BytesIO(encoded) if isinstance(encoded, bytes) else encoded) as picture:
        if picture.mode not in _EIGHT_BIT:
            raise ValueError(f"pixels of mode {picture.mode!r} are not 8 bits per channel")
        picture.load()
        return ImageOps.exif_transpose(picture)


def read_picture(path: str | os.PathLike[str]) -> Image.Image:
    """The picture of a file in its own size, RGB, upright: as `predict` and `explore` see it."""
    try:
        return open_image(Path(path)).convert("RGB")
    except FileNotFoundError:
        raise ValueError(f"there is no image {os.fspath(path)!r}; expected the path of a PNG, JPEG, ...") from None
    except UNREADABLE as error:
        raise ValueError(f"{os.fspath(path)!r} cannot be read as an image: {error}") from error


def common_size(records: Iterable[Records]) -> int:
    """The side all images seem to have, judging by up to 64 of each part."""
    sizes: set[tuple[int, int]] = set()
    for part in records:
        # Where images lie in blocks, every distant one costs a whole block: then the first ones must do.
        step = max(1, len(part) // _PROBES) if part.blocks is None else 1
        for index in range(0, min(len(part), step * _PROBES), step):
            try:
                sizes.add(open_image(part.read(index)).size)
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


def decode_records(records: Records, decoder: Decoder, *, title: str) -> tuple[Images, list[str]]:
    """All images of `records` in memory, except those that cannot be read, and a line about each of these."""
    pixels = np.zeros((len(records), decoder.channels, decoder.size, decoder.size), dtype=np.uint8)
    readable = np.ones(len(records), dtype=bool)
    complaints: list[str] = []
    waiting: dict[int, Encoded] = {}

    def fill(index: int) -> str | None:
        try:
            pixels[index] = decoder(waiting[index])
        except UNREADABLE as error:
            return f"{records.name(index)}: {error}"
        except SizeError as error:
            raise ValueError(f"{records.name(index)}: {error}") from error
        return None

    # disable=None: the bar shows only where stderr is a terminal.
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool, tqdm(total=len(records), desc=title, disable=None) as bar:
        for start in range(0, len(records), _CHUNK):
            numbers = range(start, min(start + _CHUNK, len(records)))
            waiting.clear()
            for index in numbers:  # reading stays in one thread: in order, every row group once
                try:
                    waiting[index] = records.read(index)
                except UNREADABLE as error:
                    readable[index] = False
                    complaints.append(f"{records.name(index)}: {error}")
            is_small = not any(isinstance(picture, Path) or len(picture) > _SMALL for picture in waiting.values())
            results = map(fill, waiting) if is_small else pool.map(fill, waiting)
            for index, complaint in zip(waiting, results, strict=True):
                if complaint is not None:
                    readable[index] = False
                    complaints.append(complaint)
            bar.update(len(numbers))
    if complaints:
        pixels = pixels[readable]
    labels = records.labels[torch.from_numpy(readable)]
    return Images(torch.from_numpy(pixels), labels.clone()), complaints


def _square(picture: Image.Image, size: int) -> Image.Image:
    side = min(picture.size)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    # Cropped first: resize(box=...) would let pixels outside the box bleed in.
    centre = picture.crop((left, top, left + side, top + side))
    return centre.resize((size, size), Image.Resampling.BICUBIC)
