"""Source -> Facts: how many images of how many classes, their size, colour or grey. Headers are read, no pixels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO
from statistics import median_low

import numpy as np
from PIL import Image

from odevit.data.decode import UNREADABLE
from odevit.data.loading import classes_of
from odevit.data.records import Encoded, Records
from odevit.data.source import find_source
from odevit.data.splits import choose_parts, stratified_split

_LOOKED_AT = 256


@dataclass(frozen=True)
class Facts:
    """What a recipe depends on: images to train on (those held out are not), classes, typical size, colour."""

    name: str
    images: int
    classes: int
    side: int
    """The median of the shortest sides."""
    colour: bool


def facts_about(data: str, *, validation: float = 0.1, split_seed: int = 0, **columns: str | None) -> Facts:
    """Look at a data set as `load_data` would read it, at some of its images."""
    source = find_source(data, **columns)
    classes = classes_of(source)
    parts = choose_parts(source.parts, source.name)
    train = parts["train"]
    held_out = 0 if "validation" in parts else len(stratified_split(train.labels, validation, split_seed)[1])
    seen = [picture for picture in map(_size_and_colour, _some(train)) if picture is not None]
    if not seen:
        raise ValueError(f"none of the images of {data} that were looked at can be read; check the files.")
    side = median_low(side for side, _ in seen)
    return Facts(source.name, len(train) - held_out, len(classes), side, any(colour for _, colour in seen))


def _some(records: Records) -> Iterable[Encoded | None]:
    for index in records.some(_LOOKED_AT):
        try:
            yield records.read(index)
        except UNREADABLE:
            yield None  # named and counted when everything is decoded


def _size_and_colour(encoded: Encoded | None) -> tuple[int, bool] | None:
    if isinstance(encoded, np.ndarray):
        return min(encoded.shape[:2]), encoded.ndim == 3
    try:
        with Image.open(BytesIO(encoded) if isinstance(encoded, bytes) else encoded or "") as picture:
            return min(picture.size), picture.mode not in ("1", "L", "LA", "La", "I", "I;16", "I;16B", "F")
    except UNREADABLE:
        return None
