"""image files -> NAME.gif, NAME.mp4, NAME.png: films of what a model looks at while it integrates them."""

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
from odevit.distill.alignment import Alignment
from odevit.distill.teacher_lookup import teacher_of
from odevit.errors import ConfigError, writable
from odevit.explorer.frame_data import FrameData, tell
from odevit.explorer.frames import LEADERS, Frames, draw_strip
from odevit.loading import load

FRAMES_PER_SECOND = 10
GIF_LIMIT = 2_000_000
"""Bytes. A film that would be larger is given fewer colours."""


def explore(
    images: Sequence[str | os.PathLike[str]],
    *,
    model: str | os.PathLike[str] = "cifar10",
    out: str | os.PathLike[str] | None = None,
    steps: int | None = None,
    horizon: float | None = None,
    solver: str | None = None,
    beyond: float = 2.0,
    mass: float = 0.6,
    seconds: float = 6.0,
) -> list[Path]:
    """Film what a model looks at and believes while it integrates images; returns the files written.

    Each image gives NAME.gif, NAME.mp4 if ffmpeg is installed, and NAME.png with some moments side by side. Nothing
    is overwritten: where one of the three exists, they are called NAME-attention, NAME-attention-2, and so on.

    Args:
        images: paths of image files.
        model: folder of a run (a classifier or a distilled student), or a bundled model. A student is shown beside
            its teacher where that is at hand.
        out: folder to write to; the current one unless given.
        steps, horizon, solver: how to integrate; the model's own unless given.
        beyond: how far to go, in horizons: 2 shows whether the model rests where it answers.
        mass: share of the attention that is outlined.
        seconds: length of the film.
    """
    folder = Path.cwd() if out is None else Path(out)
    _check(images, folder, beyond, mass, seconds)
    pictures = [(Path(path), read_picture(path)) for path in images]
    network, teacher, shares = load(model), teacher_of(model), None
    if teacher is not None and (Path(model) / "alignment.json").is_file():
        shares = Alignment.load(Path(model) / "alignment.json").shares
    solver_config = network.depth.resolve(solver, steps, horizon)
    stories = [
        tell(network, picture, path.stem, solver_config=solver_config, beyond=beyond, teacher=teacher, shares=shares)
        for path, picture in pictures
    ]
    folder.mkdir(parents=True, exist_ok=True)
    written = [path for story in stories for path in write(story, folder, mass=mass, seconds=seconds)]
    if not FFMpegWriter.isAvailable():
        print("There is no ffmpeg on the PATH: the films were written as GIF only.")
    return written


def write(story: FrameData, folder: Path, *, mass: float = 0.6, seconds: float = 6.0) -> list[Path]:
    """The film of a story, and some of its moments side by side, under a name that none of the files has taken."""
    stems = chain([story.name, f"{story.name}-attention"], (f"{story.name}-attention-{n}" for n in count(2)))
    triples = ([folder / f"{stem}.{suffix}" for suffix in ("gif", "mp4", "png")] for stem in stems)
    gif, mp4, png = next(paths for paths in triples if not any(path.exists() for path in paths))
    end, length = story.times[-1], max(2, round(seconds * FRAMES_PER_SECOND))
    drawing = Frames(story, mass)
    frames = [drawing.draw(end * n / (length - 1)) for n in range(length)]
    write_gif(frames, gif, exact=("white", *LEADERS))
    if FFMpegWriter.isAvailable():
        write_mp4(frames, mp4)
    moments = sorted({story.horizon * share for share in (0.0, 0.25, 0.5, 0.75, 1.0)} | {end})
    draw_strip(story, moments, mass).savefig(png)
    return [path for path in (gif, mp4, png) if path.exists()]


def write_gif(frames: Sequence[Image.Image], path: Path, exact: Sequence[str] = ("white",)) -> None:
    """One palette for all frames and no dithering: what rests in the picture rests in the file, and costs nothing.

    By hand, because matplotlib's PillowWriter gives every frame a palette of its own, which flickers, takes half as
    many bytes again, and cannot be held below a limit. The `exact` colours carry a meaning: they are never mixed with
    their neighbours.
    """
    sheet = np.concatenate([np.asarray(frame) for frame in frames])
    meaningful = [ImageColor.getrgb(colour) for colour in exact]
    for colours in (256, 128, 64, 32):
        mixed = Image.fromarray(sheet).quantize(colours - len(exact), method=Image.Quantize.MEDIANCUT)
        palette, numbers = mixed.getpalette() or [], np.array(mixed)
        for number, colour in enumerate(meaningful, start=len(palette) // 3):
            numbers[(sheet == colour).all(axis=-1)] = number
        pictures = [Image.fromarray(part, "P") for part in np.split(numbers, len(frames))]
        for picture in pictures:
            picture.putpalette(palette + [channel for colour in meaningful for channel in colour])
        file, duration = BytesIO(), 1000 // FRAMES_PER_SECOND
        pictures[0].save(file, "GIF", save_all=True, append_images=pictures[1:], duration=duration, loop=0)
        if file.tell() <= GIF_LIMIT:
            break
    path.write_bytes(file.getvalue())


def write_mp4(frames: Sequence[Image.Image], path: Path) -> None:
    """H.264 through ffmpeg; no file stays behind when that fails."""
    writer = FFMpegWriter(fps=FRAMES_PER_SECOND, codec="h264", extra_args=["-movflags", "+faststart"])
    width, height = frames[0].size
    screen = Figure(figsize=(width / 100, height / 100), dpi=100)
    shown = screen.figimage(np.asarray(frames[0]))  # the frames are drawn already: here they are only projected
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
