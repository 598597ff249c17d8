"""question -> answer, as plain numbers and words: all that the page asks, without the page."""

from __future__ import annotations

import base64
import json
import zipfile
from collections.abc import Callable, Mapping
from functools import wraps
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

from matplotlib.figure import Figure
from PIL import Image

from odevit.analysis.perturbation import Divergence, perturb_patch
from odevit.core.base import SOLVERS
from odevit.core.image_model import ImageModel
from odevit.core.solver_config import SolverConfig
from odevit.errors import ConfigError, integer, real
from odevit.explorer.catalog import LoadedModel, ModelCatalog
from odevit.explorer.charts import draw_beliefs, draw_parting, draw_path
from odevit.explorer.drawings import DRAWINGS
from odevit.explorer.film import write_gif
from odevit.explorer.frames import LEADERS, Frames, draw_strip
from odevit.explorer.serialize import Numbers, growth_of, nan_for_none, numbers_of_parting, stability_of
from odevit.explorer.traces import BEYOND, Journey, climb, travel
from odevit.explorer.uploads import as_url, from_url
from odevit.explorer.url_state import MOST_HORIZON, MOST_STEPS, read_query

Question = dict[str, Any]

FILM_FRAMES = 30
EXPECTED = (ValueError, OSError, ImportError, MemoryError)
"""What is told to whoever asked, in a sentence; anything else is a mistake of ours and must be seen."""


def in_a_sentence(answer: Callable[[Explorer, Any], Numbers]) -> Callable[[Explorer, Any], Numbers]:
    """{"problem": a sentence} in the place of an error that is the question's."""

    @wraps(answer)
    def answered(explorer: Explorer, question: Any) -> Numbers:
        try:
            return answer(explorer, question)
        except ConfigError as error:
            return {"problem": "; ".join(error.problems)}
        except EXPECTED as error:
            return {"problem": str(error) or type(error).__name__}

    return answered


class Explorer:
    """Answers what the page asks. It keeps nothing of whoever asks: a question brings its picture with it.

    A question names `model` and `picture` (a drawing, or a data: address) and may name `solver`, `steps`, `horizon`,
    `row`, `column`, `kind` and `mass`.

    Models are asked one at a time (`turn`): forward derivatives have a global level, and a teacher's attention is
    written out for a moment. Drawing a film takes seconds and has a turn of its own (`easel`), so that nobody waits
    for it who did not ask for one.
    """

    def __init__(self, catalog: ModelCatalog | None = None) -> None:
        self.shelf, self.turn, self.easel = catalog or ModelCatalog(), Lock(), Lock()

    @in_a_sentence
    def open(self, query: Any) -> Numbers:
        """What there is to choose from, and the view of an address."""
        models = list(self.shelf.sources())
        view, problems = read_query(str(query), models)
        return {
            "view": {"model": models[0]} | {name: value for name, value in vars(view).items() if value is not None},
            "models": models,
            "solvers": list(SOLVERS),
            "drawings": {name: as_url(draw()) for name, draw in DRAWINGS.items()},
            "most": {"steps": MOST_STEPS, "horizon": MOST_HORIZON},
            "problems": problems,
        }

    @in_a_sentence
    def receive(self, question: Any) -> Numbers:
        """A file's data: address as a picture that the page can show and send with its questions."""
        name = str(question.get("name", "the file"))[:80]
        with self.turn:
            picture = from_url(str(question.get("data", "")), name)
        return {"picture": as_url(picture), "width": picture.width, "height": picture.height}

    @in_a_sentence
    def look(self, question: Any) -> Numbers:
        """Probabilities and attention over time, the path, the cost."""
        with self.turn:
            exhibit, picture, name = self._asked(question)
            return nan_for_none(journey_of(exhibit, picture, name, question))

    @in_a_sentence
    def stability(self, question: Any) -> Numbers:
        """The growth of a small change along the path, and how far the last state is from another answer."""
        with self.turn:
            exhibit, picture, _ = self._asked(question)
            if exhibit.model is None:
                return {"words": ["Layers obey no equation, so that they have no Lyapunov exponent."], "rates": []}
            return stability_of(exhibit.model, picture, way_of(exhibit.model, question))

    @in_a_sentence
    def perturb(self, question: Any) -> Numbers:
        """Two paths that begin apart in one patch: both in one plane, and their distance over time."""
        with self.turn:
            exhibit, picture, _ = self._asked(question)
            if exhibit.model is None:
                return {"words": ["Layers obey no equation: there are no paths to compare."], "times": []}
            parting = parting_of(exhibit.model, picture, question)
            return numbers_of_parting(exhibit.model, parting, way_of(exhibit.model, question).steps)

    @in_a_sentence
    def film(self, question: Any) -> Numbers:
        """A GIF of the attention over time."""
        with self.turn:
            exhibit, picture, name = self._asked(question)
            story = journey_of(exhibit, picture, name, question).story
        with self.easel, TemporaryDirectory() as folder:
            drawing, end = Frames(story, mass_of(question)), story.times[-1]
            frames = [drawing.draw(end * n / (FILM_FRAMES - 1)) for n in range(FILM_FRAMES)]
            write_gif(frames, Path(folder) / "film.gif", exact=("white", *LEADERS))
            return attached(f"{name}.gif", "image/gif", (Path(folder) / "film.gif").read_bytes())

    @in_a_sentence
    def figures(self, question: Any) -> Numbers:
        """Every figure as PNG, and the numbers that they were drawn from, in one ZIP."""
        with self.turn:
            exhibit, picture, name = self._asked(question)
            journey, model = journey_of(exhibit, picture, name, question), exhibit.model
            growth = None if model is None else growth_of(model, picture, way_of(model, question))
            there = model is not None and question.get("row") is not None
            parting = parting_of(model, picture, question) if model is not None and there else None
        moments = [journey.story.horizon * share for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
        with self.easel:
            figures = {
                "probabilities": draw_beliefs(journey),
                "path": draw_path(journey, growth),
                "attention": draw_strip(journey.story, moments, mass_of(question)),
            }
            if parting is not None:
                figures["two-paths"] = draw_parting(parting, journey.story.horizon)
            return attached(f"{name}-figures.zip", "application/zip", zipped(figures, nan_for_none(journey)))

    def _asked(self, question: Any) -> tuple[LoadedModel, Image.Image, str]:
        """The model, the picture and its name."""
        if not isinstance(question, dict):
            raise ValueError("a question names a model and a picture")
        exhibit, picture = self.shelf.take(str(question.get("model"))), str(question.get("picture", ""))
        if picture.startswith("data:"):
            return exhibit, from_url(picture, "the picture"), "picture"
        if picture not in DRAWINGS:
            raise ValueError(f"there is no drawing {picture[:80]!r}; known: {', '.join(DRAWINGS)}")
        return exhibit, DRAWINGS[picture](), picture


def journey_of(exhibit: LoadedModel, picture: Image.Image, name: str, question: Question) -> Journey:
    """Through an equation in the way that was asked for, or up the layers of a ViT, which has no way to choose."""
    if exhibit.model is None:
        assert exhibit.teacher is not None  # an exhibit is one of the two
        assert exhibit.lens is not None
        return climb(exhibit.teacher, exhibit.lens, picture, name)
    solver_config = way_of(exhibit.model, question)
    return travel(
        exhibit.model, picture, name, solver_config=solver_config, teacher=exhibit.teacher, shares=exhibit.shares
    )


def way_of(model: ImageModel, question: Question) -> SolverConfig:
    """The model's own way, but for what the question names; no longer than a page can wait for."""
    named = {name: question.get(name) or None for name in ("solver", "steps", "horizon")}
    problems = [
        *integer(1, MOST_STEPS, optional=True).problem("steps", named["steps"]),
        *real(above=0, maximum=MOST_HORIZON, optional=True).problem("horizon", named["horizon"]),
    ]
    if named["solver"] is not None and (problem := SOLVERS.problem(str(named["solver"]))):
        problems.append(problem)
    if problems:
        raise ConfigError("the way to integrate", problems)
    return model.solver_config.replace(**named)


def parting_of(model: ImageModel, picture: Image.Image, question: Question) -> Divergence:
    """The two paths of the patch that a question names, as far as the page shows them."""
    patch = question.get("row"), question.get("column")
    if not all(isinstance(place, int) for place in patch):
        raise ValueError(f"row={patch[0]!r}, column={patch[1]!r}; expected the place of a patch")
    kind, solver_config = str(question.get("kind") or "token"), way_of(model, question).stretched(BEYOND)
    return perturb_patch(model, model.pixels_of(picture), (int(patch[0]), int(patch[1])), solver_config, kind=kind)  # type: ignore[arg-type]


def mass_of(question: Question) -> float:
    """The share of the attention to outline."""
    mass = question.get("mass", 0.6)
    if problems := real(above=0, maximum=1).problem("mass", mass):
        raise ConfigError("the picture", problems)
    return float(mass)


def zipped(figures: Mapping[str, Figure], numbers: Numbers) -> bytes:
    """NAME.png of every figure, and numbers.json."""
    file = BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for title, figure in figures.items():
            drawn = BytesIO()
            figure.savefig(drawn, format="png")
            archive.writestr(f"{title}.png", drawn.getvalue())
        archive.writestr("numbers.json", json.dumps(numbers))
    return file.getvalue()


def attached(name: str, kind: str, content: bytes) -> Numbers:
    """A file as it travels in an answer."""
    return {"name": name, "type": kind, "data": base64.b64encode(content).decode()}
