"""bytes -> image: an untrusted file, decoded safely, upright, in RGB, at a limited size."""

from __future__ import annotations

import base64
import binascii
import warnings
from io import BytesIO

from PIL import Image

from odevit.data.records import UNREADABLE
from odevit.hf.processor import upright

MAX_BYTES = 64 * 2**20
MAX_PIXELS = 64_000_000
MAX_SIDE = 512
"""Pixels along the shorter side of a decoded image; no supported model takes larger ones."""
FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF")
"""Formats that hold pixels only; PIL reads others too, some of which can run programs, such as EPS."""
READABLE = "expected a PNG, JPEG, GIF, WebP, BMP or TIFF file"


def decode_upload(encoded: bytes, name: str = "the file") -> Image.Image:
    """The image in a file, of an animation the first frame; a ValueError for anything else."""
    if len(encoded) > MAX_BYTES:
        raise ValueError(f"{name} has {len(encoded) >> 20} MiB; expected at most {MAX_BYTES >> 20}")
    try:
        with warnings.catch_warnings():
            # PIL warns of images with many pixels; the limit below is checked before any pixel is decoded.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(BytesIO(encoded), formats=FORMATS)
    except UNREADABLE:
        raise ValueError(f"{name} cannot be read as an image; {READABLE}") from None
    with image:
        if image.width * image.height > MAX_PIXELS:
            megapixels = image.width * image.height / 1e6
            raise ValueError(f"{name} has {megapixels:.0f} megapixels; expected at most {MAX_PIXELS // 10**6}")
        try:
            # A JPEG is decoded at a fraction of its size, which saves memory.
            image.draft("RGB", (2 * MAX_SIDE, 2 * MAX_SIDE))
            image.load()
            return shrink(upright(image))
        except UNREADABLE as error:
            raise ValueError(f"{name} cannot be read as an image ({error}); {READABLE}") from None


def shrink(image: Image.Image) -> Image.Image:
    """The image with at most `MAX_SIDE` pixels along its shorter side."""
    scale = MAX_SIDE / min(image.size)
    if scale >= 1.0:
        return image.copy()
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    return image.resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)


def to_data_url(image: Image.Image) -> str:
    """The image as the data: URL of a PNG, which is lossless."""
    file = BytesIO()
    image.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def from_data_url(url: str, name: str = "the file") -> Image.Image:
    """The image in a data: URL; other URLs are refused."""
    head, comma, body = url.partition(",")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        raise ValueError(f"{name} is no data: URL; expected data:image/...;base64,...")
    try:
        return decode_upload(base64.b64decode(body, validate=True), name)
    except binascii.Error:
        raise ValueError(f"{name} cannot be read as an image; {READABLE}") from None
