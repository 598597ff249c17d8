"""Journey, Growth, Parting -> plain numbers and words: what the page is told, and what its JSON file holds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from odevit.analysis.contraction import contraction_radius
from odevit.analysis.lyapunov import Growth, local_growth
from odevit.analysis.perturbation import Divergence
from odevit.analysis.plane import Plane
from odevit.core.image_model import ImageModel
from odevit.core.solver_config import SolverConfig
from odevit.explorer.charts import CURVES, plane_of, rates_between
from odevit.explorer.text import growth_in_words, parting_in_words, radius_in_words
from odevit.explorer.traces import BEYOND, Journey, what_is_read
from odevit.explorer.uploads import as_url

Numbers = dict[str, Any]


def nan_for_none(journey: Journey) -> Numbers:
    """Everything the page shows of a journey: plain numbers and words, as they stand in the JSON file."""
    story, plane = journey.story, plane_of(journey)
    classes = story.likeliest(CURVES)
    maps = {"mean": story.attention, "rollout": journey.rolled}
    maps |= {str(number): head for number, head in enumerate(journey.heads.unbind(dim=1), start=1)}
    return {
        "picture": as_url(story.picture.convert("RGB")),
        "seen": list(story.seen),
        "way": None if journey.solver_config is None else journey.solver_config.to_dict(),
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


@torch.no_grad()
def numbers_of_parting(model: ImageModel, parting: Divergence, horizon: int) -> Numbers:
    """Two paths in one plane, their distance, and whether they meet, in words; `horizon` is the number of its state."""
    paths = [torch.stack([what_is_read(model, x)[0] for x in path]) for path in (parting.states, parting.others)]
    plane = Plane.through(*paths)
    first, second = (
        name_of(model, model.readout(path[horizon])[0].argmax()) for path in (parting.states, parting.others)
    )
    return {
        "times": list(parting.times),
        "distance": plain(parting.distance / parting.size, 8),
        "rate": finite(parting.rate),
        "path": plain(plane.points(paths[0])),
        "other": plain(plane.points(paths[1])),
        "explained": list(plane.explained),
        "answers": [first, second],
        "words": [parting_in_words(parting, horizon, (first, second))],
    }


def growth_of(model: ImageModel, picture: Image.Image, solver_config: SolverConfig) -> Growth:
    """Where along the path of a picture a small change grows."""
    with torch.no_grad():
        x0 = model.embed(model.pixels_of(picture))
    return local_growth(model.field, x0, solver_config)


def stability_of(model: ImageModel, picture: Image.Image, solver_config: SolverConfig) -> Numbers:
    """The growth of a small change up to the horizon, the radius of the answer there, and both in words."""
    growth = growth_of(model, picture, solver_config)
    with torch.no_grad():
        state = model.depth(model.embed(model.pixels_of(picture)), solver_config).state
    radius = contraction_radius(model.readout, state, rivals=3, directions=1)
    answer, rival = (name_of(model, number) for number in (radius.answer, radius.rival))
    return {
        "exponent": finite(growth.exponents.values[0, 0]),
        "error": finite(growth.exponents.error[0, 0]),
        "rates": [finite(rate) for rate in rates_between(growth, tuple(solver_config.stretched(BEYOND).edges))],
        "radius": finite(radius.value[0]),
        "relative_radius": finite(radius.value[0] / state.norm()),
        "rival": rival,
        "words": [growth_in_words(growth), radius_in_words(radius, float(state.norm()), answer, rival)],
    }


def name_of(model: ImageModel, number: Tensor) -> str:
    """The name of a class; the first of a list of synonyms."""
    return model.labels.get(int(number), f"class {int(number)}").split(",")[0]


def plain(values: Tensor | tuple[float, ...], digits: int = 5) -> list[Any]:
    """Numbers as JSON has them, rounded."""
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.array(values)
    rounded: list[Any] = np.round(array.astype(np.float64), digits).tolist()
    return rounded


def finite(value: Any) -> float | None:
    """A number, or None where it is not finite: JSON knows no infinity."""
    return float(value) if math.isfinite(float(value)) else None
