"""frames -> NAME.gif, NAME.mp4: pictures put one after the other."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image, ImageColor

FRAMES_PER_SECOND = 10
GIF_LIMIT = 2_000_000
"""Bytes. A film that would be larger is given fewer colours."""


def write_gif(frames: Sequence[Image.Image], path: Path, exact: Sequence[str] = ("white",)) -> None:
    """One palette for all frames and no dithering: what rests in the picture rests in the file, and costs nothing.

    Args:
        frames: pictures of one size.
        path: to write to.
        exact: colours that carry a meaning and must not be mixed with their neighbours.
    """
    sheet = np.concatenate([np.asarray(frame) for frame in frames])
    kept = [ImageColor.getrgb(colour)[:3] for colour in exact]
    for colours in (256, 128, 64, 32):
        data = _gif(sheet, len(frames), kept, colours)
        if len(data) <= GIF_LIMIT:
            break
    path.write_bytes(data)


def _gif(sheet: np.ndarray, count: int, exact: Sequence[tuple[int, ...]], colours: int) -> bytes:
    """The bytes of a film whose frames stand one below the other on a sheet."""
    mixed = Image.fromarray(sheet).quantize(colours - len(exact), method=Image.Quantize.MEDIANCUT)
    palette = mixed.getpalette() or []
    numbers = np.array(mixed)
    for number, colour in enumerate(exact, start=len(palette) // 3):
        numbers[(sheet == colour).all(axis=-1)] = number
    frames = [Image.fromarray(part, "P") for part in np.split(numbers, count)]
    for frame in frames:
        frame.putpalette(palette + [channel for colour in exact for channel in colour])
    file = BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:], duration=1000 // FRAMES_PER_SECOND, loop=0)
    return file.getvalue()


def write_mp4(frames: Sequence[Image.Image], path: Path) -> bool:
    """H.264 by the ffmpeg on the PATH; False, and no file, where there is none."""
    ffmpeg = shutil.which("ffmpeg")
    if ffmpeg is None:
        return False
    width, height = frames[0].size
    command = [
        *(ffmpeg, "-loglevel", "error", "-y"),
        *("-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", str(FRAMES_PER_SECOND), "-i", "-"),
        *("-pix_fmt", "yuv420p", "-movflags", "+faststart"),  # what every player knows
        str(path),
    ]
    done = subprocess.run(
        command, input=b"".join(frame.tobytes() for frame in frames), capture_output=True, check=False
    )
    if done.returncode != 0:
        path.unlink(missing_ok=True)
        raise ValueError(f"ffmpeg could not write {path}: {done.stderr.decode(errors='replace').strip()}")
    return True
