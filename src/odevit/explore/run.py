"""image files -> films of what a model looks at while it integrates them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from odevit.analysis.load import load_subject, load_teacher
from odevit.data.picture import read_picture
from odevit.distill.alignment import Alignment
from odevit.errors import ConfigError
from odevit.explore.film import FRAMES_PER_SECOND, write_gif, write_mp4
from odevit.explore.frames import Frames, draw_strip
from odevit.explore.plots import COLOURS
from odevit.explore.story import Story, tell


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
    """Film what a model looks at, believes and does while it integrates images; the files that were written.

    For each image NAME.gif, NAME.mp4 where there is ffmpeg, and NAME.png with some moments side by side. No file that
    is there is overwritten: NAME-attention, NAME-attention-2, ... are taken instead.

    Args:
        images: paths.
        model: a run's folder (a classifier or a distilled student), or the name of a bundled model. A student is shown
            beside its teacher where that is at hand.
        out: the folder to write to; the current one unless given.
        steps, horizon, solver: how to integrate; the model's own unless given.
        beyond: how far to go, in horizons: 2 shows whether the model rests where it answers.
        mass: share of the attention that is outlined.
        seconds: length of the film.
    """
    folder = Path.cwd() if out is None else Path(out)
    _check(images, folder, beyond, mass, seconds)
    pictures = [(Path(path), read_picture(path)) for path in images]
    subject, teacher, shares = load_subject(model), load_teacher(model), None
    if teacher is not None and (Path(model) / "alignment.json").is_file():
        shares = Alignment.load(Path(model) / "alignment.json").shares
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for path, picture in pictures:
        story = tell(
            subject, picture, path.stem, steps=steps, horizon=horizon, solver=solver, beyond=beyond, teacher=teacher,
            shares=shares,
        )  # fmt: skip
        written += write(story, folder, mass=mass, seconds=seconds)
    if not any(path.suffix == ".mp4" for path in written):
        print("There is no ffmpeg on the PATH: the films were written as GIF only.")
    return written


def write(story: Story, folder: Path, *, mass: float = 0.6, seconds: float = 6.0) -> list[Path]:
    """The film of a story and some moments of it side by side."""
    gif, mp4, png = _free(folder, story.name)
    end, length = story.times[-1], max(2, round(seconds * FRAMES_PER_SECOND))
    drawing = Frames(story, mass)
    frames = [drawing.draw(end * n / (length - 1)) for n in range(length)]
    write_gif(frames, gif, exact=("white", *COLOURS))
    filmed = write_mp4(frames, mp4)
    moments = sorted({story.horizon * share for share in (0.0, 0.25, 0.5, 0.75, 1.0)} | {end})
    draw_strip(story, moments, mass).save(png)
    return [gif, *([mp4] if filmed else []), png]


def _check(images: Sequence[str | os.PathLike[str]], folder: Path, beyond: float, mass: float, seconds: float) -> None:
    """All that is wrong with the arguments, together."""
    problems = []
    if isinstance(images, str | os.PathLike) or not images:
        problems.append(f"images={images!r}; expected one path or more in a list, such as ['cat.png']")
    if folder.exists() and not folder.is_dir():
        problems.append(f"out={os.fspath(folder)!r} is a file; expected a folder, or the name of a new one")
    if not 1.0 <= beyond < float("inf"):
        problems.append(f"beyond={beyond}; expected a number of horizons, at least 1")
    if not 0.0 < mass <= 1.0:
        problems.append(f"mass={mass}; expected a share of the attention in (0, 1]")
    if not 0.0 < seconds <= 30.0:
        problems.append(f"seconds={seconds}; expected the length of a film in (0, 30]")
    if problems:
        raise ConfigError("explore", problems)


def _free(folder: Path, name: str) -> tuple[Path, Path, Path]:
    """NAME.gif, NAME.mp4 and NAME.png, under the first name of which none of the three is there."""
    for number in count():
        stem = name if number == 0 else f"{name}-attention" + (f"-{number}" if number > 1 else "")
        gif, mp4, png = (folder / f"{stem}.{ending}" for ending in ("gif", "mp4", "png"))
        if not (gif.exists() or mp4.exists() or png.exists()):
            return gif, mp4, png
    raise AssertionError("numbers do not end")
