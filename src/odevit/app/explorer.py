"""question -> answer, as plain numbers and words: all that the page asks, without the page."""

from __future__ import annotations

import base64
import json
import math
import zipfile
from collections.abc import Callable
from functools import wraps
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from odevit.analysis.contraction import contraction_radius
from odevit.analysis.growth import local_growth
from odevit.analysis.perturbation import Parting, perturb_patch
from odevit.analysis.plane import Plane
from odevit.app.address import MOST_HORIZON, MOST_STEPS, read_query
from odevit.app.receiving import as_url, from_url
from odevit.app.sentences import growth_in_words, parting_in_words, radius_in_words
from odevit.app.shelf import Exhibit, Shelf
from odevit.errors import ConfigError, number, whole
from odevit.film import write_gif
from odevit.film.charts import CURVES, draw_beliefs, draw_parting, draw_path, plane_of, rates_between
from odevit.film.drawings import DRAWINGS
from odevit.film.frames import LEADERS, Frames, draw_strip
from odevit.film.journey import BEYOND, Journey, climb, travel, what_is_read
from odevit.model import Askable
from odevit.solver import SOLVERS, Way

Question = dict[str, Any]
Numbers = dict[str, Any]

FILM_FRAMES = 40
EXPECTED = (ValueError, OSError, ImportError, MemoryError)
"""What is told to whoever asked, in a sentence; anything else is a mistake of ours and must be seen."""


def in_a_sentence(answer: Callable[[Explorer, Any], Numbers]) -> Callable[[Explorer, Any], Numbers]:
    """{"problem": a sentence} in the place of an error that is the question's."""

    @wraps(answer)
    def answered(explorer: Explorer, question: Any) -> Numbers:
        try:
            # One at a time: forward derivatives have a global level, and a teacher's attention is written out for a
            # moment. Nothing else is shared between those who ask.
            with explorer.turn:
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
    """

    def __init__(self, shelf: Shelf | None = None) -> None:
        self.shelf, self.turn = shelf or Shelf(), Lock()

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
        picture = from_url(str(question.get("data", "")), name)
        return {"picture": as_url(picture), "width": picture.width, "height": picture.height}

    @in_a_sentence
    def look(self, question: Any) -> Numbers:
        """Probabilities and attention over time, the path, the cost."""
        exhibit, picture, name = self._asked(question)
        return numbers_of(journey_of(exhibit, picture, name, question))

    @in_a_sentence
    def stability(self, question: Any) -> Numbers:
        """The growth of a small change along the path, and how far the last state is from another answer."""
        exhibit, picture, _ = self._asked(question)
        if exhibit.model is None:
            return {"words": ["Layers obey no equation, so that they have no Lyapunov exponent."], "rates": []}
        model, way = exhibit.model, way_of(exhibit.model, question)
        with torch.no_grad():
            x0 = model.embed(model.pixels_of(picture))
            state = model.depth(x0, way).state
        growth = local_growth(model.field, x0, way)
        radius = contraction_radius(model.readout, state, rivals=3, directions=1)
        answer, rival = (model.labels.get(int(k[0]), f"class {int(k[0])}") for k in (radius.answer, radius.rival))
        return {
            "exponent": finite(growth.exponents.values[0, 0]),
            "error": finite(growth.exponents.error[0, 0]),
            "rates": [finite(rate) for rate in rates_between(growth, tuple(way.times(BEYOND).edges))],
            "radius": finite(radius.value[0]),
            "relative_radius": finite(radius.value[0] / state.norm()),
            "rival": rival,
            "words": [growth_in_words(growth), radius_in_words(radius, float(state.norm()), answer, rival)],
        }

    @in_a_sentence
    def perturb(self, question: Any) -> Numbers:
        """Two paths that begin apart in one patch: both in one plane, and their distance over time."""
        exhibit, picture, _ = self._asked(question)
        if exhibit.model is None:
            return {"words": ["Layers obey no equation: there are no paths to compare."], "times": []}
        parting = parting_of(exhibit.model, picture, question)
        paths = [
            torch.stack([what_is_read(exhibit.model, x)[0] for x in of]) for of in (parting.states, parting.others)
        ]
        plane = Plane.through(*paths)
        horizon = way_of(exhibit.model, question).steps
        with torch.no_grad():
            answers = tuple(
                exhibit.model.labels.get(int(k), f"class {int(k)}")
                for k in (exhibit.model.readout(x[horizon])[0].argmax() for x in (parting.states, parting.others))
            )
        return {
            "times": list(parting.times),
            "distance": plain(parting.distance / parting.size, 8),
            "rate": finite(parting.rate),
            "path": plain(plane.points(paths[0])),
            "other": plain(plane.points(paths[1])),
            "explained": list(plane.explained),
            "answers": list(answers),
            "words": [parting_in_words(parting, horizon, answers[0] == answers[1], (answers[0], answers[1]))],
        }

    @in_a_sentence
    def film(self, question: Any) -> Numbers:
        """A GIF of the attention over time."""
        exhibit, picture, name = self._asked(question)
        journey = journey_of(exhibit, picture, name, question)
        drawing, end = Frames(journey.story, mass_of(question)), journey.story.times[-1]
        frames = [drawing.draw(end * n / (FILM_FRAMES - 1)) for n in range(FILM_FRAMES)]
        with TemporaryDirectory() as folder:
            write_gif(frames, Path(folder) / "film.gif", exact=("white", *LEADERS))
            return attached(f"{name}.gif", "image/gif", (Path(folder) / "film.gif").read_bytes())

    @in_a_sentence
    def figures(self, question: Any) -> Numbers:
        """Every figure as PNG, and the numbers that they were drawn from, in one ZIP."""
        exhibit, picture, name = self._asked(question)
        journey = journey_of(exhibit, picture, name, question)
        growth = None
        figures: dict[str, Figure] = {}
        if exhibit.model is not None:
            with torch.no_grad():
                x0 = exhibit.model.embed(exhibit.model.pixels_of(picture))
            growth = local_growth(exhibit.model.field, x0, way_of(exhibit.model, question))
            if question.get("row") is not None:
                parting = parting_of(exhibit.model, picture, question)
                figures["two-paths"] = draw_parting(parting, journey.story.horizon)
        moments = [journey.story.horizon * share for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
        figures["probabilities"] = draw_beliefs(journey)
        figures["path"] = draw_path(journey, growth)
        figures["attention"] = draw_strip(journey.story, moments, mass_of(question))
        file = BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for title, figure in figures.items():
                drawn = BytesIO()
                figure.savefig(drawn, format="png")
                archive.writestr(f"{title}.png", drawn.getvalue())
            archive.writestr("numbers.json", json.dumps(numbers_of(journey)))
        return attached(f"{name}-figures.zip", "application/zip", file.getvalue())

    def _asked(self, question: Any) -> tuple[Exhibit, Image.Image, str]:
        """The model, the picture and its name."""
        if not isinstance(question, dict):
            raise ValueError("a question names a model and a picture")
        exhibit, picture = self.shelf.take(str(question.get("model"))), str(question.get("picture", ""))
        if picture.startswith("data:"):
            return exhibit, from_url(picture, "the picture"), "picture"
        if picture not in DRAWINGS:
            raise ValueError(f"there is no drawing {picture[:80]!r}; known: {', '.join(DRAWINGS)}")
        return exhibit, DRAWINGS[picture](), picture


def journey_of(exhibit: Exhibit, picture: Image.Image, name: str, question: Question) -> Journey:
    """Through an equation in the way that was asked for, or up the layers of a ViT, which has no way to choose."""
    if exhibit.model is None:
        assert exhibit.teacher is not None  # an exhibit is one of the two
        assert exhibit.lens is not None
        return climb(exhibit.teacher, exhibit.lens, picture, name)
    way = way_of(exhibit.model, question)
    return travel(exhibit.model, picture, name, way=way, teacher=exhibit.teacher, shares=exhibit.shares)


def way_of(model: Askable, question: Question) -> Way:
    """The model's own way, but for what the question names; no longer than a page can wait for."""
    named = {name: question.get(name) or None for name in ("solver", "steps", "horizon")}
    problems = [
        *whole(1, MOST_STEPS, optional=True).problem("steps", named["steps"]),
        *number(above=0, most=MOST_HORIZON, optional=True).problem("horizon", named["horizon"]),
    ]
    if named["solver"] is not None and (problem := SOLVERS.problem(named["solver"])):
        problems.append(problem)
    if problems:
        raise ConfigError("the way to integrate", problems)
    return model.way.but(**named)


def parting_of(model: Askable, picture: Image.Image, question: Question) -> Parting:
    """The two paths of the patch that a question names, as far as the page shows them."""
    patch = question.get("row"), question.get("column")
    if not all(isinstance(place, int) for place in patch):
        raise ValueError(f"row={patch[0]!r}, column={patch[1]!r}; expected the place of a patch")
    kind, way = str(question.get("kind") or "token"), way_of(model, question).times(BEYOND)
    return perturb_patch(model, model.pixels_of(picture), (int(patch[0]), int(patch[1])), way, kind=kind)  # type: ignore[arg-type]


def mass_of(question: Question) -> float:
    """The share of the attention to outline."""
    mass = question.get("mass", 0.6)
    if problems := number(above=0, most=1).problem("mass", mass):
        raise ConfigError("the picture", problems)
    return float(mass)


def numbers_of(journey: Journey) -> Numbers:
    """Everything the page shows of a journey: plain numbers and words, as they stand in the JSON file."""
    story, plane = journey.story, plane_of(journey)
    classes = story.likeliest(CURVES)
    maps = {"mean": story.attention, "rollout": journey.rolled}
    maps |= {str(number): head for number, head in enumerate(journey.heads.unbind(dim=1), start=1)}
    return {
        "picture": as_url(story.picture.convert("RGB")),
        "seen": list(story.seen),
        "way": None if journey.way is None else journey.way.numbers(),
        "times": plain(story.times),
        "horizon": story.horizon,
        "query": story.query,
        "classes": [story.label(number) for number in classes],
        "probabilities": plain(story.probabilities[:, classes].T, 6),
        "answer": vars(journey.answer),
        "usual": vars(journey.usual),
        "changed": journey.changed,
        "grid": list(journey.rolled.shape[-2:]),
        "attention": {name: plain(values.flatten(1), 6) for name, values in maps.items()},
        "path": plain(plane.points(journey.read)),
        "layers": None if journey.layers is None else plain(plane.points(journey.layers)),
        "explained": list(plane.explained),
    }


def attached(name: str, kind: str, content: bytes) -> Numbers:
    """A file as it travels in an answer."""
    return {"name": name, "type": kind, "data": base64.b64encode(content).decode()}


def plain(values: Tensor | tuple[float, ...], digits: int = 5) -> list[Any]:
    """Numbers as JSON has them, rounded."""
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.array(values)
    rounded: list[Any] = np.round(array.astype(np.float64), digits).tolist()
    return rounded


def finite(value: Any) -> float | None:
    """A number, or None where it is not finite: JSON knows no infinity."""
    return float(value) if math.isfinite(float(value)) else None
