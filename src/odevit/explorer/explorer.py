"""request -> JSON: everything that the page asks its server, without the page."""

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
from odevit.errors import ConfigError
from odevit.explorer.catalog import LoadedModel, ModelCatalog
from odevit.explorer.charts import draw_divergence, draw_path, draw_probabilities
from odevit.explorer.drawings import DRAWINGS
from odevit.explorer.film import draw_frames, write_gif
from odevit.explorer.frames import draw_strip
from odevit.explorer.serialize import (
    Json,
    measure_growth,
    serialize_divergence,
    serialize_stability,
    serialize_trace,
)
from odevit.explorer.traces import HORIZONS, Trace, trace
from odevit.explorer.uploads import from_data_url, to_data_url
from odevit.explorer.url_state import RULES, SOLVER_RULES, parse_query

FILM_FRAMES = 30
REPORTED = (ValueError, OSError, ImportError, MemoryError)
"""Errors that are reported to the page; any other one is a bug and is raised."""


def report_errors(method: Callable[[Explorer, Any], Json]) -> Callable[[Explorer, Any], Json]:
    """Return {"problem": message} instead of raising an error that the request caused."""

    @wraps(method)
    def reporting(explorer: Explorer, request: Any) -> Json:
        try:
            return method(explorer, request)
        except ConfigError as error:
            return {"problem": "; ".join(error.problems)}
        except REPORTED as error:
            return {"problem": str(error) or type(error).__name__}

    return reporting


class Explorer:
    """Answers the requests of the page. It keeps no state of its visitors: a request contains its image.

    A request names `model` and `picture` (the name of a drawing, or a data: URL). It may name `solver`, `steps`,
    `horizon`, `row`, `column`, `kind` and `mass`.

    One request at a time uses the models (`model_lock`), because forward-mode derivatives have a global level and a
    teacher switches to eager attention for a moment. Drawing takes seconds and has a lock of its own (`render_lock`).
    """

    def __init__(self, catalog: ModelCatalog | None = None) -> None:
        self.catalog, self.model_lock, self.render_lock = catalog or ModelCatalog(), Lock(), Lock()

    @report_errors
    def options(self, query: Any) -> Json:
        """All choices of the page, and the state that a URL's query describes."""
        models = list(self.catalog.sources())
        state, problems = parse_query(str(query), models)
        return {
            "state": {"model": models[0]} | {name: value for name, value in vars(state).items() if value is not None},
            "models": models,
            "solvers": list(SOLVERS),
            "drawings": {name: to_data_url(draw()) for name, draw in DRAWINGS.items()},
            "problems": problems,
        }

    @report_errors
    def upload(self, request: Any) -> Json:
        """The data: URL of a file -> the data: URL of an image that the page can display and send with its requests."""
        name = str(request.get("name", "the file"))[:80]
        with self.model_lock:
            image = from_data_url(str(request.get("data", "")), name)
        return {"image": to_data_url(image), "width": image.width, "height": image.height}

    @report_errors
    def trace(self, request: Any) -> Json:
        """Probabilities, attention and path over time, and the cost."""
        with self.model_lock:
            return serialize_trace(trace_requested(*self._load(request), request))

    @report_errors
    def stability(self, request: Any) -> Json:
        """The growth of a small change along the path, and the contraction radius of the final state."""
        with self.model_lock:
            loaded, image, _ = self._load(request)
            if loaded.model is None:
                return {"text": "A ViT has no ODE, so it has no Lyapunov exponent.", "rates": []}
            return serialize_stability(loaded.model, image, requested_solver(loaded.model, request))

    @report_errors
    def perturb(self, request: Any) -> Json:
        """Two paths whose starts differ in one patch: both in one plane, and their distance over time."""
        with self.model_lock:
            loaded, image, _ = self._load(request)
            if loaded.model is None:
                return {"text": "A ViT has no ODE, so there are no paths to compare.", "times": []}
            divergence = perturb_requested(loaded.model, image, request)
            return serialize_divergence(loaded.model, divergence, requested_solver(loaded.model, request).steps)

    @report_errors
    def film(self, request: Any) -> Json:
        """A GIF of the attention over time."""
        with self.model_lock:
            loaded, image, name = self._load(request)
            traced = trace_requested(loaded, image, name, request)
        with self.render_lock, TemporaryDirectory() as folder:
            path = Path(folder) / "film.gif"
            write_gif(draw_frames(traced, requested_mass(request), FILM_FRAMES), path)
            return attachment(f"{name}.gif", "image/gif", path.read_bytes())

    @report_errors
    def figures(self, request: Any) -> Json:
        """A ZIP of every figure as PNG, and of the numbers that they were drawn from."""
        with self.model_lock:
            loaded, image, name = self._load(request)
            traced, growth, divergence = trace_requested(loaded, image, name, request), None, None
            if (model := loaded.model) is not None:
                growth = measure_growth(model, image, requested_solver(model, request))
                divergence = None if request.get("row") is None else perturb_requested(model, image, request)
        with self.render_lock:
            times = [traced.horizon * share for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
            figures = {
                "probabilities": draw_probabilities(traced),
                "path": draw_path(traced, growth),
                "attention": draw_strip(traced, times, requested_mass(request)),
            }
            if divergence is not None:
                figures["two-paths"] = draw_divergence(divergence, traced.horizon)
            return attachment(f"{name}-figures.zip", "application/zip", zip_figures(figures, serialize_trace(traced)))

    def _load(self, request: Any) -> tuple[LoadedModel, Image.Image, str]:
        """The model, the image and its name."""
        if not isinstance(request, dict):
            raise ValueError(f"the request is a {type(request).__name__}; expected a dict with 'model' and 'picture'")
        loaded, picture = self.catalog.get(str(request.get("model"))), str(request.get("picture", ""))
        if picture.startswith("data:"):
            return loaded, from_data_url(picture, "the image"), "picture"
        if picture not in DRAWINGS:
            raise ValueError(f"unknown drawing {picture[:80]!r}; known: {', '.join(DRAWINGS)}")
        return loaded, DRAWINGS[picture](), picture


def trace_requested(loaded: LoadedModel, image: Image.Image, name: str, request: Json) -> Trace:
    """The trace with the solver that a request names; a ViT has none."""
    solver_config = None if loaded.model is None else requested_solver(loaded.model, request)
    return trace(loaded, image, name, solver_config=solver_config)


def requested_solver(model: ImageModel, request: Json) -> SolverConfig:
    """The model's own solver config with the settings that a request names, within the limits of the page."""
    given = {name: request[name] for name in SOLVER_RULES if request.get(name)}
    if problems := [problem for name in given for problem in SOLVER_RULES[name][1].problem(name, given[name])]:
        raise ConfigError("the request", problems)
    return model.solver_config.replace(**given)


def perturb_requested(model: ImageModel, image: Image.Image, request: Json) -> Divergence:
    """The original path and the one whose requested patch is perturbed."""
    row, column = request.get("row"), request.get("column")
    if not isinstance(row, int) or not isinstance(column, int):
        raise ValueError(f"row={row!r}, column={column!r}; expected the row and column of a patch, two whole numbers")
    kind, solver_config = str(request.get("kind") or "token"), requested_solver(model, request).stretched(HORIZONS)
    return perturb_patch(model, model.pixels_of(image), (row, column), solver_config, kind=kind)


def requested_mass(request: Json) -> float:
    """The share of the attention to outline."""
    mass = request.get("mass", 0.6)
    if problems := RULES["mass"][1].problem("mass", mass):
        raise ConfigError("the request", problems)
    return float(mass)


def zip_figures(figures: Mapping[str, Figure], numbers: Json) -> bytes:
    """A ZIP file with NAME.png for every figure, and numbers.json."""
    file = BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for title, figure in figures.items():
            png = BytesIO()
            figure.savefig(png, format="png")
            archive.writestr(f"{title}.png", png.getvalue())
        archive.writestr("numbers.json", json.dumps(numbers))
    return file.getvalue()


def attachment(name: str, media_type: str, content: bytes) -> Json:
    """A file inside a JSON response."""
    return {"name": name, "type": media_type, "data": base64.b64encode(content).decode()}
