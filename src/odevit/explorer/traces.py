"""image, model, solver config -> Trace: attention, class probabilities and states over integration time."""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers.image_processing_utils import BaseImageProcessor

from odevit.analysis.attention import AttentionPath, attention_over_time, attention_path
from odevit.analysis.base import frozen
from odevit.core.image_model import ImageModel
from odevit.core.solver_config import SolverConfig
from odevit.distill.teacher import Teacher
from odevit.explorer.catalog import LoadedModel
from odevit.hf.processor import make_image_processor, pixel_values, pixels_uint8
from odevit.surgery.block_locator import readout_weights_of
from odevit.surgery.modeling_student import OdeStudent
from odevit.tokens import Logits, Pixels, Tokens

HORIZONS = 2.0
"""How far a trace goes, in horizons: past the prediction, to show whether the state has converged by then."""
DISPLAY_SIDE = 256
"""Pixels, roughly, along the longer side of a displayed image."""


@dataclass(frozen=True)
class TimedPrediction:
    """The most likely class of one image, and what computing it cost."""

    label: str
    probability: float
    nfe: int
    milliseconds: float


@dataclass(frozen=True)
class TeacherTrace:
    """The layers of a teacher, for display beside its student."""

    attention: Tensor  # the mean over heads [layer, row, column]
    readout: Tensor  # what the teacher's head reads of h_0, ..., h_L [layer + 1, dim]
    starts: tuple[float, ...]  # the time at which the student should reach each layer; the first is 0

    def layer_at(self, t: float) -> int:
        """The layer, counted from 0, that corresponds to time t; after the last start, the last layer."""
        return bisect_right(self.starts, t) - 1


@dataclass(frozen=True)
class Trace:
    """What one model does with one image at the times t_0, ..., t_N. Films, charts and the page are made from it."""

    name: str
    image: Image.Image  # the part of it that the model sees
    input_size: tuple[int, int]  # width and height of the model's input
    times: tuple[float, ...]  # t_0, ..., t_N; for a ViT, the numbers 0, ..., L of its layers
    horizon: float  # T, where the prediction is made; the times may go beyond it
    attention: Tensor  # a_h(t_n) [time, head, row, column]
    rollout: Tensor  # the attention rollout up to t_n [time, row, column]
    query: str  # the token, or tokens, whose attention it is, such as "CLS"
    probabilities: Tensor  # of the classes [time, class]
    speed: Tensor  # |dx/dt| / |x| of each step [time - 1]
    readout: Tensor  # what the head reads of x(t_n): CLS or a mean of the patches, in the teacher's width [time, dim]
    labels: Mapping[int, str]
    prediction: TimedPrediction  # at the horizon, with `solver_config`
    default_prediction: TimedPrediction  # with the model's own solver config; the same object if that was used
    solver_config: SolverConfig | None = None  # None for a ViT, which has no solver
    teacher: TeacherTrace | None = None

    @cached_property
    def mean_attention(self) -> Tensor:
        """The mean over heads [time, row, column]."""
        return self.attention.mean(dim=1)

    @property
    def prediction_changed(self) -> bool:
        """Whether the model predicts another class with its own solver config."""
        return self.prediction.label != self.default_prediction.label

    @property
    def midpoints(self) -> tuple[float, ...]:
        """(t_n + t_{n+1}) / 2, the times of `speed`."""
        return tuple((a + b) / 2 for a, b in pairwise(self.times))

    def label(self, number: int) -> str:
        """The name of a class."""
        return class_name(self.labels, number)

    def prediction_at(self, t: float) -> tuple[str, float]:
        """The most likely class at time t and its probability."""
        probability, number = interpolate(self.probabilities, self.times, t).max(dim=-1)
        return self.label(int(number)), float(probability)

    def top_classes(self, count: int = 3) -> list[int]:
        """The predicted class, then the classes with the highest probability at any time."""
        final = interpolate(self.probabilities, self.times, self.horizon)
        peaks = self.probabilities.amax(dim=0)
        peaks[final.argmax()] = torch.inf
        return peaks.topk(min(count, len(peaks))).indices.tolist()


def interpolate(values: Tensor, times: Sequence[float], t: float) -> Tensor:
    """The value at t: linear between neighbouring times, constant before the first and after the last."""
    position = float(np.interp(t, times, range(len(times))))
    return torch.lerp(values[math.floor(position)], values[math.ceil(position)], position % 1)


def trace(
    loaded: LoadedModel, image: Image.Image, name: str = "image", *, solver_config: SolverConfig | None = None
) -> Trace:
    """The trace of one image through a loaded model: over time for an ODE, over layers for a ViT."""
    if loaded.model is not None:
        options: dict[str, Any] = {"teacher": loaded.teacher, "layer_shares": loaded.layer_shares}
        return trace_ode(loaded.model, image, name, solver_config=solver_config, **options)
    assert loaded.teacher is not None  # a LoadedModel without a model holds a ViT
    assert loaded.lens is not None
    return trace_vit(loaded.teacher, loaded.lens, image, name)


@torch.no_grad()
def trace_ode(
    model: ImageModel,
    image: Image.Image,
    name: str = "image",
    *,
    solver_config: SolverConfig | None = None,
    horizons: float = HORIZONS,
    teacher: Teacher | None = None,
    layer_shares: Sequence[float] | None = None,
) -> Trace:
    """The trace of one image through a model with a trajectory, integrated at constant step size.

    Args:
        model: a model with a trajectory.
        image: of any size and colour mode.
        name: of the image.
        solver_config: the model's own unless given.
        horizons: how far to integrate, in horizons.
        teacher: whose layers are shown beside the path.
        layer_shares: the share of the horizon that belongs to each of its layers; equal ones unless given.
    """
    _ = model.field  # raises if there is no trajectory
    config, pixels = solver_config or model.solver_config, model.pixels_of(image)
    with frozen(model):
        prediction = default_prediction = _predict(model, pixels, config)
        if config != model.solver_config:
            default_prediction = _predict(model, pixels, model.solver_config)
        path = attention_over_time(model, pixels, config.stretched(horizons), rolled=True)
        probabilities = torch.cat([model.readout(state).float().softmax(-1) for state in path.states])
        readout = torch.cat([pooled_features(model, state) for state in path.states])
    return Trace(
        name=name,
        image=display_image(model.image_processor, model.image_size, image),
        input_size=(pixels.shape[-1], pixels.shape[-2]),
        horizon=config.horizon,
        probabilities=probabilities.cpu(),
        readout=readout,
        labels=model.labels,
        prediction=prediction,
        default_prediction=default_prediction,
        solver_config=config,
        teacher=None if teacher is None else _trace_teacher(teacher, pixels, config.horizon, layer_shares),
        **_path_fields(path),
    )


@torch.no_grad()
def trace_vit(teacher: Teacher, lens: OdeStudent, image: Image.Image, name: str = "image") -> Trace:
    """The trace of one image through the layers of a ViT; layer l stands at time l.

    Args:
        teacher: the ViT.
        lens: what makes class probabilities of its hidden states, see `logit_lens`.
        image: of any size and colour mode.
        name: of the image.
    """
    processor = teacher.processor or make_image_processor(lens.config)
    pixels = pixel_values(processor, image).to(next(teacher.parameters()).device)
    start = time.perf_counter()
    logits = teacher(pixels).logits
    prediction = _timed(logits, lens.labels, teacher.num_layers, start)
    path = _layer_path(teacher, pixels)
    with frozen(lens):
        probabilities = torch.cat([lens.readout(state).float() for state in path.states]).softmax(-1)
    probabilities[-1] = logits[0].float().softmax(-1)  # the prediction itself, free of the lens's rounding
    return Trace(
        name=name,
        image=display_image(processor, lens.image_size, image),
        input_size=(pixels.shape[-1], pixels.shape[-2]),
        horizon=path.times[-1],
        probabilities=probabilities.cpu(),
        readout=_layer_readouts(teacher, path),
        labels=lens.labels,
        prediction=prediction,
        default_prediction=prediction,
        **_path_fields(path),
    )


def pooled_features(model: ImageModel, state: Tokens) -> Tensor:
    """sum_i w_i x_i, w_i the weight of token i in what the head reads [batch, dim]; in the teacher's width."""
    weights, _ = model.readout_weights(state)
    tokens = model.to_teacher_space(state)
    return torch.einsum("bi,bid->bd", weights[:, : tokens.shape[1]].to(tokens), tokens).float().cpu()


def display_image(processor: BaseImageProcessor, input_size: tuple[int, int], image: Image.Image) -> Image.Image:
    """The part of an image that a model sees, at the image's own resolution, up to about `DISPLAY_SIDE` pixels."""
    finer = max(1, min(*image.size, DISPLAY_SIDE) // max(input_size))
    return Image.fromarray(pixels_uint8(processor, image, finer).transpose(1, 2, 0).squeeze())


def class_name(labels: Mapping[int, str], number: int) -> str:
    """The name of a class; of a list of synonyms, the first."""
    return labels.get(number, f"class {number}").split(",")[0]


def _predict(model: ImageModel, pixels: Pixels, solver_config: SolverConfig) -> TimedPrediction:
    start = time.perf_counter()
    output = model(pixels, solver_config=solver_config, on_failure="ignore", return_dict=True)
    output.trajectory.require(f"no prediction with {solver_config}")
    return _timed(output.logits, model.labels, output.stats.nfe, start)


def _timed(logits: Logits, labels: Mapping[int, str], nfe: int, start: float) -> TimedPrediction:
    probability, number = logits[0].float().softmax(-1).max(dim=-1)
    label = class_name(labels, int(number))  # int() waits for the device, so the time below is the full one
    return TimedPrediction(label, float(probability), nfe, 1000 * (time.perf_counter() - start))


def _layer_path(teacher: Teacher, pixels: Pixels) -> AttentionPath:
    """States and attention of the layers 0, ..., L. The state after the last layer has no map: it repeats the last."""
    output, layout = teacher(pixels, attentions=True), teacher.layout(pixels)
    maps = (*output.attentions, output.attentions[-1])
    reader = partial(readout_weights_of, teacher.model, layout=layout)
    return attention_path(range(len(maps)), output.states, maps, layout, reader, residual=[0.5] * len(maps))


def _layer_readouts(teacher: Teacher, path: AttentionPath) -> Tensor:
    rows = []
    for state in path.states:
        weights, _ = readout_weights_of(teacher.model, state, layout=teacher.layout())
        rows.append(torch.einsum("bi,bid->bd", weights.to(state), state)[0])
    return torch.stack(rows).float().cpu()


def _trace_teacher(teacher: Teacher, pixels: Pixels, horizon: float, shares: Sequence[float] | None) -> TeacherTrace:
    path = _layer_path(teacher, pixels)
    attention = path.mean[:-1, 0].float().cpu()
    spans = [horizon * share for share in shares or [1.0 / len(attention)] * len(attention)]
    return TeacherTrace(attention, _layer_readouts(teacher, path), (0.0, *accumulate(spans[:-1])))


def _path_fields(path: AttentionPath) -> dict[str, Any]:
    assert path.rolled is not None  # asked for
    return {
        "times": path.times,
        "attention": path.heads[:, 0].float().cpu(),
        "rollout": path.rolled[:, 0].float().cpu(),
        "query": path.query,
        "speed": relative_speed(path).cpu(),
    }


def relative_speed(path: AttentionPath) -> Tensor:
    """|x_{n+1} - x_n| / (h |x_{n+1}|): the speed of the solver's steps, zero where the solver has converged."""
    states = torch.stack(path.states).flatten(1).double()
    gaps = torch.tensor(path.times, dtype=torch.float64, device=states.device).diff()
    return states.diff(dim=0).norm(dim=-1) / gaps / states[1:].norm(dim=-1)
