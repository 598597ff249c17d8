"""image files -> NAME.gif, NAME.mp4, NAME.png: films of a model's attention and class probabilities over time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from io import BytesIO
from itertools import chain, count
from pathlib import Path
from subprocess import CalledProcessError

import numpy as np
from matplotlib.animation import FFMpegWriter
from matplotlib.figure import Figure
from PIL import Image, ImageColor

from odevit.data.decode import read_picture
from odevit.errors import ConfigError, writable
from odevit.explorer.catalog import find_teacher
from odevit.explorer.frames import CLASS_COLOURS, Frames, draw_strip
from odevit.explorer.traces import HORIZONS, Trace, trace_ode
from odevit.loading import load

FRAMES_PER_SECOND = 10
GIF_LIMIT = 2_000_000
"""Bytes. The number of colours of a larger GIF is reduced."""


def explore(
    images: Sequence[str | os.PathLike[str]],
    *,
    model: str | os.PathLike[str] = "cifar10",
    out: str | os.PathLike[str] | None = None,
    steps: int | None = None,
    horizon: float | None = None,
    solver: str | None = None,
    beyond: float = HORIZONS,
    mass: float = 0.6,
    seconds: float = 6.0,
) -> list[Path]:
    """Film the attention and the class probabilities of a model over integration time; returns the files written.

    Each image gives NAME.gif, NAME.mp4 if ffmpeg is installed, and NAME.png with some times side by side. Existing
    files are never overwritten: if one of the three exists, the new files are called NAME-attention, NAME-attention-2
    and so on.

    Args:
        images: paths of image files.
        model: folder of a run (a classifier or a distilled student), or a bundled model. A student is shown beside
            its teacher if the teacher is available locally.
        out: folder to write to; the current one unless given.
        steps, horizon, solver: solver settings; the model's own unless given.
        beyond: how far to integrate, in horizons; 2 shows whether the state has converged at the horizon.
        mass: share of the attention that is outlined.
        seconds: length of the film.
    """
    folder = Path.cwd() if out is None else Path(out)
    _check(images, folder, beyond, mass, seconds)
    pictures = [(Path(path).stem, read_picture(path)) for path in images]
    network, (teacher, shares) = load(model), find_teacher(model)
    solver_config = network.depth.resolve(solver, steps, horizon)
    traces = [
        trace_ode(
            network, image, name, solver_config=solver_config, horizons=beyond, teacher=teacher, layer_shares=shares
        )
        for name, image in pictures
    ]
    folder.mkdir(parents=True, exist_ok=True)
    written = [path for trace in traces for path in write(trace, folder, mass=mass, seconds=seconds)]
    if not FFMpegWriter.isAvailable():
        print("No ffmpeg on the PATH: films were written as GIF only.")
    return written


def write(trace: Trace, folder: Path, *, mass: float = 0.6, seconds: float = 6.0) -> list[Path]:
    """Write the film of a trace, and a strip of some of its times, under a name that no existing file has."""
    stems = chain([trace.name, f"{trace.name}-attention"], (f"{trace.name}-attention-{n}" for n in count(2)))
    triples = ([folder / f"{stem}.{suffix}" for suffix in ("gif", "mp4", "png")] for stem in stems)
    gif, mp4, png = next(paths for paths in triples if not any(path.exists() for path in paths))
    frames = draw_frames(trace, mass, max(2, round(seconds * FRAMES_PER_SECOND)))
    write_gif(frames, gif)
    if FFMpegWriter.isAvailable():
        write_mp4(frames, mp4)
    times = sorted({trace.horizon * share for share in (0.0, 0.25, 0.5, 0.75, 1.0)} | {trace.times[-1]})
    draw_strip(trace, times, mass).savefig(png)
    return [path for path in (gif, mp4, png) if path.exists()]


def draw_frames(trace: Trace, mass: float, number: int) -> list[Image.Image]:
    """Frames at constant distance in time, from the start of a trace to its end."""
    drawing, end = Frames(trace, mass), trace.times[-1]
    return [drawing.draw(end * n / (number - 1)) for n in range(number)]


def write_gif(frames: Sequence[Image.Image], path: Path) -> None:
    """Write a GIF with one palette for all frames and no dithering, so that constant areas compress to nothing.

    matplotlib's PillowWriter gives every frame its own palette, which flickers, makes the file 1.5 times larger, and
    has no size limit. White and the colours of the classes are kept exactly, because legends refer to them.
    """
    sheet = np.concatenate([np.asarray(frame) for frame in frames])
    exact = [ImageColor.getrgb(colour) for colour in ("white", *CLASS_COLOURS)]
    for colours in (256, 128, 64, 32):
        reduced = Image.fromarray(sheet).quantize(colours - len(exact), method=Image.Quantize.MEDIANCUT)
        palette, numbers = reduced.getpalette() or [], np.array(reduced)
        for number, colour in enumerate(exact, start=len(palette) // 3):
            numbers[(sheet == colour).all(axis=-1)] = number
        pictures = [Image.fromarray(part, "P") for part in np.split(numbers, len(frames))]
        for picture in pictures:
            picture.putpalette(palette + [channel for colour in exact for channel in colour])
        file, duration = BytesIO(), 1000 // FRAMES_PER_SECOND
        pictures[0].save(file, "GIF", save_all=True, append_images=pictures[1:], duration=duration, loop=0)
        if file.tell() <= GIF_LIMIT:
            break
    path.write_bytes(file.getvalue())


def write_mp4(frames: Sequence[Image.Image], path: Path) -> None:
    """Write H.264 with ffmpeg; if that fails, no file is left behind."""
    writer = FFMpegWriter(fps=FRAMES_PER_SECOND, codec="h264", extra_args=["-movflags", "+faststart"])
    width, height = frames[0].size
    screen = Figure(figsize=(width / 100, height / 100), dpi=100)
    shown = screen.figimage(np.asarray(frames[0]))  # the frames are drawn already; the figure only passes them on
    try:
        with writer.saving(screen, str(path), dpi=100):
            for frame in frames:
                shown.set_data(np.asarray(frame))
                writer.grab_frame()
    except (CalledProcessError, BrokenPipeError) as error:
        path.unlink(missing_ok=True)
        reason = (getattr(error, "stderr", None) or str(error)).strip()
        raise ValueError(f"ffmpeg could not write {path}: {reason}") from error


def _check(images: Sequence[str | os.PathLike[str]], folder: Path, beyond: float, mass: float, seconds: float) -> None:
    """Raise one error with everything that is wrong with the arguments."""
    several = bool(images) and not isinstance(images, str | os.PathLike)
    checks = [
        (several, f"images={images!r}; expected one path or more in a list, such as ['cat.png']"),
        (1.0 <= beyond <= 1000.0, f"beyond={beyond}; expected a number of horizons, from 1 to 1000"),
        (0.0 < mass <= 1.0, f"mass={mass}; expected a share of the attention in (0, 1]"),
        (0.0 < seconds <= 30.0, f"seconds={seconds}; expected the length of a film in (0, 30]"),
    ]
    if problems := [*(problem for fine, problem in checks if not fine), *writable("out", folder, folder=True)]:
        raise ConfigError("explore", problems)
