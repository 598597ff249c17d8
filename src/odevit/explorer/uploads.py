"""bytes -> picture: a file from anywhere, opened without harm, upright, in RGB and no larger than it needs to be."""

from __future__ import annotations

import base64
import binascii
import warnings
from io import BytesIO

from PIL import Image

from odevit.data.records import UNREADABLE
from odevit.hf.processor import upright

MOST_BYTES = 64 * 2**20
MOST_PIXELS = 64_000_000
LARGEST = 512
"""Pixels along the shorter side of what is kept: more than any model of ours looks at."""
FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF")
"""Formats that are pixels and nothing else; PIL knows others, some of which are programs."""
READABLE = "expected a PNG, JPEG, GIF, WebP, BMP or TIFF file"


def receive(encoded: bytes, name: str = "the file") -> Image.Image:
    """The picture of a file, of an animation the first frame; a ValueError says what is wrong with anything else."""
    if len(encoded) > MOST_BYTES:
        raise ValueError(f"{name} has {len(encoded) >> 20} MiB; expected at most {MOST_BYTES >> 20}")
    try:
        with warnings.catch_warnings():
            # PIL warns of many pixels; here they are counted before the first one is decoded.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            picture = Image.open(BytesIO(encoded), formats=FORMATS)
    except UNREADABLE:
        raise ValueError(f"{name} cannot be read as a picture; {READABLE}") from None
    with picture:
        if picture.width * picture.height > MOST_PIXELS:
            megapixels = picture.width * picture.height / 1e6
            raise ValueError(f"{name} has {megapixels:.0f} megapixels; expected at most {MOST_PIXELS // 10**6}")
        try:
            # A JPEG is decoded at a fraction of its size, which keeps sixty megapixels out of memory.
            picture.draft("RGB", (2 * LARGEST, 2 * LARGEST))
            picture.load()
            return reduced(upright(picture))
        except UNREADABLE as error:
            raise ValueError(f"{name} cannot be read as a picture ({error}); {READABLE}") from None


def reduced(picture: Image.Image) -> Image.Image:
    """The picture with at most `LARGEST` pixels along its shorter side."""
    scale = LARGEST / min(picture.size)
    if scale >= 1.0:
        return picture.copy()
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    return picture.resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)


def as_url(picture: Image.Image) -> str:
    """A picture as a data: address, which a page can show and send back without loss."""
    file = BytesIO()
    picture.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def from_url(url: str, name: str = "the file") -> Image.Image:
    """The picture of a data: address; no other kind of address is followed."""
    head, comma, body = url.partition(",")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        raise ValueError(f"{name} is no data: address of a picture")
    try:
        return receive(base64.b64decode(body, validate=True), name)
    except binascii.Error:
        raise ValueError(f"{name} cannot be read as a picture; {READABLE}") from None
