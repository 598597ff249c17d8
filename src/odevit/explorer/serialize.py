"""Trace, Growth, Divergence -> JSON: what the page receives, and what its JSON file contains."""

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
from odevit.explorer.charts import CURVES, growth_rates, principal_plane
from odevit.explorer.text import describe_divergence, describe_growth, describe_radius
from odevit.explorer.traces import HORIZONS, Trace, class_name, pooled_features
from odevit.explorer.uploads import to_data_url

Json = dict[str, Any]


def serialize_trace(trace: Trace) -> Json:
    """Everything that the page shows of a trace."""
    plane, classes = principal_plane(trace), trace.top_classes(CURVES)
    maps = {"mean": trace.mean_attention, "rollout": trace.rollout}
    maps |= {str(number): head for number, head in enumerate(trace.attention.unbind(dim=1), start=1)}
    return {
        "image": to_data_url(trace.image.convert("RGB")),
        "input_size": list(trace.input_size),
        "solver_config": None if trace.solver_config is None else trace.solver_config.to_dict(),
        "times": rounded(trace.times),
        "horizon": trace.horizon,
        "query": trace.query,
        "classes": [trace.label(number) for number in classes],
        "probabilities": rounded(trace.probabilities[:, classes].T, 6),
        "prediction": vars(trace.prediction),
        "default_prediction": vars(trace.default_prediction),
        "prediction_changed": trace.prediction_changed,
        "grid": list(trace.rollout.shape[-2:]),
        "attention": {name: rounded(values.flatten(1), 6) for name, values in maps.items()},
        "path": rounded(plane.points(trace.readout)),
        "teacher_path": None if trace.teacher is None else rounded(plane.points(trace.teacher.readout)),
        "explained_variance": list(plane.explained),
    }


@torch.no_grad()
def serialize_divergence(model: ImageModel, divergence: Divergence, at_horizon: int) -> Json:
    """Two paths in one plane, their distance, and a sentence; `at_horizon` is the index of the state there."""
    both = divergence.states, divergence.others
    paths = [torch.cat([pooled_features(model, state) for state in states]) for states in both]
    plane = Plane.through(*paths)
    first, second = (class_name(model.labels, int(model.readout(states[at_horizon])[0].argmax())) for states in both)
    return {
        "times": list(divergence.times),
        "distance": rounded(divergence.distance / divergence.size, 8),
        "rate": finite_or_none(divergence.rate),
        "path": rounded(plane.points(paths[0])),
        "other_path": rounded(plane.points(paths[1])),
        "explained_variance": list(plane.explained),
        "labels": [first, second],
        "text": describe_divergence(divergence, at_horizon, (first, second)),
    }


def measure_growth(model: ImageModel, image: Image.Image, solver_config: SolverConfig) -> Growth:
    """Where along the path of an image a small change of the state grows."""
    with torch.no_grad():
        x0 = model.embed(model.pixels_of(image))
    return local_growth(model.field, x0, solver_config)


def serialize_stability(model: ImageModel, image: Image.Image, solver_config: SolverConfig) -> Json:
    """The growth of a small change up to the horizon, the contraction radius there, and both in a text."""
    growth = measure_growth(model, image, solver_config)
    rates = growth_rates(growth, tuple(solver_config.stretched(HORIZONS).edges))
    with torch.no_grad():
        state = model.follow(model.embed(model.pixels_of(image)), solver_config).state
    radius = contraction_radius(model.readout, state, rivals=3, directions=1)
    label, rival = (class_name(model.labels, int(number)) for number in (radius.answer, radius.rival))
    return {
        "exponent": finite_or_none(growth.exponents.values[0, 0]),
        "error": finite_or_none(growth.exponents.error[0, 0]),
        "rates": [finite_or_none(rate) for rate in rates],
        "radius": finite_or_none(radius.value[0]),
        "relative_radius": finite_or_none(radius.value[0] / state.norm()),
        "rival": rival,
        "text": f"{describe_growth(growth)} {describe_radius(radius, float(state.norm()), label, rival)}",
    }


def rounded(values: Tensor | tuple[float, ...], digits: int = 5) -> list[Any]:
    """Nested lists of rounded numbers."""
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.array(values)
    numbers: list[Any] = np.round(array.astype(np.float64), digits).tolist()
    return numbers


def finite_or_none(value: Any) -> float | None:
    """A number, or None for infinity and NaN, which JSON does not have."""
    return float(value) if math.isfinite(float(value)) else None
