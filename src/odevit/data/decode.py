"""bytes, path or array -> uint8 [C, S, S], as an image processor makes it, in several threads or processes.

`datasets` can decode too, but it accepts 16 bits and does not name the file that cannot be read.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from tqdm import tqdm  # type: ignore[import-untyped]
from transformers.image_processing_utils import BaseImageProcessor

from odevit.data.images import Images
from odevit.data.records import UNREADABLE, Encoded, Records, SizeError
from odevit.hf.processor import pixels_uint8, shape_of, square_processor, upright

_SAMPLE = 64  # images whose size is compared
_CHUNK = 2048  # images in memory in encoded form
_TASK = 32  # images that a process is given at a time
_SMALL = 1 << 14  # bytes; threads that decode smaller images mostly wait for each other
_MIN_FOR_PROCESSES = 8192  # images; with fewer, starting processes takes longer than it saves


@dataclass(frozen=True)
class Decoder:
    """Turns encoded images into uint8 [C, S, S] with an image processor, our own unless another is given.

    With `resize=False`, images of other sizes are an error.
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
    """The loaded image, rotated upright, in RGB; raises one of UNREADABLE."""
    if isinstance(encoded, np.ndarray):
        return upright(Image.fromarray(encoded))
    with Image.open(BytesIO(encoded) if isinstance(encoded, bytes) else encoded) as picture:
        picture.load()
        return upright(picture)


def read_picture(path: str | os.PathLike[str]) -> Image.Image:
    """The image of a file in its own size, in RGB, rotated upright."""
    try:
        return open_image(Path(path))
    except FileNotFoundError:
        raise ValueError(f"there is no image {os.fspath(path)!r}; expected the path of a PNG, JPEG, ...") from None
    except UNREADABLE as error:
        raise ValueError(f"{os.fspath(path)!r} cannot be read as an image: {error}") from error


def infer_image_size(splits: Iterable[Records]) -> int:
    """The common side of all images, from a sample of each split."""
    sizes: set[tuple[int, int]] = set()
    for records in splits:
        for index in records.sample_indices(_SAMPLE):
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


class Decoded(NamedTuple):
    """The pixels of an image, or the reason why there are none: `unreadable`, or a `misfit` in size."""

    pixels: np.ndarray | None
    unreadable: str = ""
    misfit: str = ""


def decode_records(records: Records, decoder: Decoder, *, title: str) -> tuple[Images, list[str]]:
    """All readable images of `records`, in memory, and a line for each unreadable one."""
    pixels = torch.zeros(len(records), decoder.channels, decoder.size, decoder.size, dtype=torch.uint8)
    array = pixels.numpy()
    unreadable: dict[int, str] = {}
    # disable=None: the bar is shown only on a terminal.
    with _workers(decoder, len(records)) as decode, tqdm(total=len(records), desc=title, disable=None) as bar:
        for chunk in torch.arange(len(records)).split(_CHUNK):
            waiting: dict[int, Encoded] = {}
            for index in chunk.tolist():  # one thread reads, in order, so that each row group is read once
                try:
                    waiting[index] = records.read(index)
                except UNREADABLE as error:
                    unreadable[index] = f"{records.name(index)}: {error}"
            for index, made in zip(waiting, decode(list(waiting.values())), strict=True):
                if made.misfit:
                    raise ValueError(f"{records.name(index)}: {made.misfit}")
                if made.pixels is None:
                    unreadable[index] = f"{records.name(index)}: {made.unreadable}"
                else:
                    array[index] = made.pixels
            bar.update(len(chunk))
    images = Images(pixels, records.labels)
    if unreadable:
        readable = [index for index in range(len(records)) if index not in unreadable]
        images = images.subset(torch.tensor(readable, dtype=torch.int64))
    return images, [unreadable[index] for index in sorted(unreadable)]


@contextmanager
def _workers(decoder: Decoder, count: int) -> Iterator[Callable[[list[Encoded]], Iterable[Decoded]]]:
    """A function that decodes a list of images: in processes for many, in threads for large ones, otherwise here."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if count >= _MIN_FOR_PROCESSES and cores > 1 and _can_fork():
        from concurrent.futures import ProcessPoolExecutor  # slow to import

        context = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(cores, context, initializer=_set_decoder, initargs=(decoder,)) as pool:

            def in_processes(pictures: list[Encoded]) -> Iterable[Decoded]:
                tasks = [pictures[first : first + _TASK] for first in range(0, len(pictures), _TASK)]
                return chain.from_iterable(pool.map(_decode_task, tasks))

            yield in_processes
        return

    def one(picture: Encoded) -> Decoded:
        return _decode(decoder, picture)

    with ThreadPoolExecutor(cores) as threads:

        def decode(pictures: list[Encoded]) -> Iterable[Decoded]:
            small = not any(isinstance(picture, Path) or len(picture) > _SMALL for picture in pictures)
            return map(one, pictures) if small else threads.map(one, pictures)

        yield decode


def _can_fork() -> bool:
    """Forked processes need not import anything; starting others takes longer than they save."""
    return "fork" in multiprocessing.get_all_start_methods() and not multiprocessing.current_process().daemon


def _decode(decoder: Decoder, picture: Encoded) -> Decoded:
    try:
        return Decoded(decoder(picture))
    except UNREADABLE as error:
        return Decoded(None, unreadable=str(error) or type(error).__name__)
    except SizeError as error:
        return Decoded(None, misfit=str(error))


_decoders: list[Decoder] = []
"""The decoder of a worker process."""


def _set_decoder(decoder: Decoder) -> None:
    _decoders[:] = [decoder]


def _decode_task(pictures: list[Encoded]) -> list[Decoded]:
    return [_decode(_decoders[0], picture) for picture in pictures]
