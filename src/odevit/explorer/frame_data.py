"""image -> t, attention, probabilities, speed: the numbers of a film, before anything is drawn."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from odevit.analysis.attention import AttentionPath, attention_over_time
from odevit.analysis.base import frozen
from odevit.core.image_model import ImageModel
from odevit.core.solver_config import SolverConfig
from odevit.distill.teacher import Teacher, attention_over_layers
from odevit.hf.processor import pixels_uint8

SIDE = 256
"""Pixels, roughly, along the longer side of the image in a panel."""


@dataclass(frozen=True)
class FrameData:
    """What happens to one image while it is integrated."""

    name: str
    picture: Image.Image  # the part of it that the model sees
    seen: tuple[int, int]  # width and height at which the model sees the picture
    times: tuple[float, ...]  # t_0, ..., t_N
    horizon: float  # where the model stops of its own accord; the times may go beyond it
    attention: Tensor  # a(t_n), the mean over heads, [time, row, column]
    query: str  # the token, or tokens, whose attention it is, in words
    probabilities: Tensor  # of the classes at each time, [time, label]
    speed: Tensor  # |dx/dt| / |x| between t_n and t_{n+1}, [time - 1]
    labels: Mapping[int, str]
    layers: Tensor | None = None  # the attention of a teacher, [layer, row, column]
    starts: tuple[float, ...] = ()  # when the student should look at what each layer looks at; the first is 0

    @property
    def middles(self) -> tuple[float, ...]:
        """The midpoints of the steps, to which the speeds belong."""
        return tuple((a + b) / 2 for a, b in pairwise(self.times))

    def answer(self, t: float) -> tuple[str, float]:
        """The likeliest class at time t and its probability."""
        share, number = between(self.probabilities, self.times, t).max(dim=-1)
        return self.label(int(number)), float(share)

    def label(self, number: int) -> str:
        """The name of a class; the first of a list of synonyms."""
        return self.labels.get(number, f"class {number}").split(",")[0]

    def layer(self, t: float) -> int:
        """The teacher's layer, counted from 0, that corresponds to the time t; the last one stays for good."""
        return bisect_right(self.starts, t) - 1

    def likeliest(self, count: int = 3) -> list[int]:
        """The answer at the horizon, then the classes that were likeliest at any time."""
        final = between(self.probabilities, self.times, self.horizon)
        peaks = self.probabilities.amax(dim=0)
        peaks[final.argmax()] = torch.inf
        return peaks.topk(min(count, len(peaks))).indices.tolist()


def between(values: Tensor, times: Sequence[float], t: float) -> Tensor:
    """The value at t, linear between its two neighbours in time; constant before the first and after the last."""
    position = float(np.interp(t, times, range(len(times))))
    return torch.lerp(values[math.floor(position)], values[math.ceil(position)], position % 1)


@torch.no_grad()
def tell(
    model: ImageModel,
    picture: Image.Image,
    name: str,
    *,
    solver_config: SolverConfig | None = None,
    beyond: float = 2.0,
    teacher: Teacher | None = None,
    shares: Sequence[float] | None = None,
) -> FrameData:
    """The story of one image, integrated at constant step size to `beyond` times the horizon.

    Beside a teacher, each of its layers has one of the `shares` of the horizon; equal ones unless given.
    """
    solver_config, pixels = solver_config or model.solver_config, model.pixels_of(picture)
    path = attention_over_time(model, pixels, solver_config.stretched(beyond))
    return story_of(model, picture, name, path, solver_config, teacher=teacher, shares=shares)


@torch.no_grad()
def story_of(
    model: ImageModel,
    picture: Image.Image,
    name: str,
    path: AttentionPath,
    solver_config: SolverConfig,
    *,
    teacher: Teacher | None = None,
    shares: Sequence[float] | None = None,
) -> FrameData:
    """The story of one image whose path is known already; `way` says where its horizon is."""
    pixels = model.pixels_of(picture)
    with frozen(model):
        probabilities = torch.stack([model.readout(state)[0].float().softmax(-1) for state in path.states])
    layers: Tensor | None = None
    starts: tuple[float, ...] = ()
    if teacher is not None:
        layers = attention_over_layers(teacher, pixels).mean[:, 0].float().cpu()
        spans = [solver_config.horizon * share for share in shares or [1.0 / len(layers)] * len(layers)]
        starts = (0.0, *accumulate(spans[:-1]))
    return FrameData(
        name=name,
        picture=view(model, picture),
        seen=(pixels.shape[-1], pixels.shape[-2]),
        times=path.times,
        horizon=solver_config.horizon,
        attention=path.mean[:, 0].float().cpu(),
        query=path.query,
        probabilities=probabilities.cpu(),
        speed=_speed(path).cpu(),
        labels=model.labels,
        layers=layers,
        starts=starts,
    )


def view(model: ImageModel, picture: Image.Image) -> Image.Image:
    """What the model sees of a picture, which may be its centre, as finely as the picture is, up to `SIDE` pixels."""
    finer = min(*picture.size, SIDE) // max(model.image_size)
    pixels = pixels_uint8(model.image_processor, picture, max(1, finer))
    return Image.fromarray(pixels.transpose(1, 2, 0).squeeze())


def _speed(path: AttentionPath) -> Tensor:
    """|x_{n+1} - x_n| / (h |x_{n+1}|): the speed of the steps themselves, which vanishes where the method rests."""
    states = torch.stack(path.states).flatten(1).double()
    gaps = torch.tensor(path.times, dtype=torch.float64, device=states.device).diff()
    return states.diff(dim=0).norm(dim=-1) / gaps / states[1:].norm(dim=-1)
