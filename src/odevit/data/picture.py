"""path -> RGB, upright: a picture that someone points at, as `predict` and `explore` see it."""

from __future__ import annotations

import os
from pathlib import Path

from PIL import Image

from odevit.data.decode import UNREADABLE, open_image


def read_picture(path: str | os.PathLike[str]) -> Image.Image:
    """The picture of a file in its own size, turned as its EXIF orientation says."""
    try:
        return open_image(Path(path)).convert("RGB")
    except FileNotFoundError:
        raise ValueError(f"there is no image {os.fspath(path)!r}; expected the path of a PNG, JPEG, ...") from None
    except UNREADABLE as error:
        raise ValueError(f"{os.fspath(path)!r} cannot be read as an image: {error}") from error
