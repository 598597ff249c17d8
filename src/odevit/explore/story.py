"""image -> t, attention, probabilities, speed: the numbers of a film, before anything is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from odevit.analysis.attention import AttentionPath, attention_over_time, teacher_attention
from odevit.analysis.load import image_processor
from odevit.analysis.subject import Subject, untouched
from odevit.distill.teacher import Teacher


@dataclass(frozen=True)
class Layers:
    """What a teacher looks at, layer by layer, and when its student should do the same.

    Args:
        attention: [layer, row, column].
        starts: the time from which each layer is the one that corresponds; the first is 0.
    """

    attention: Tensor
    starts: tuple[float, ...]

    def at(self, t: float) -> int:
        """The number, from 0, of the layer that corresponds to the time t; the last one stays for good."""
        return max(number for number, start in enumerate(self.starts) if start <= t or number == 0)


@dataclass(frozen=True)
class Story:
    """What happens to one image while it is integrated.

    Args:
        name: of the image.
        picture: as the file has it.
        seen: width and height in which the model sees it.
        times: t_0, ..., t_N.
        horizon: where the model stops by itself; the times go on behind it.
        attention: a(t_n), the mean over heads, [time, row, column].
        query: who looks, in words.
        probabilities: of the classes at each time, [time, label].
        speed: |dx/dt| / |x| between t_n and t_{n+1}, [time - 1].
        labels: the names of the classes.
        layers: the teacher beside it, where there is one.
    """

    name: str
    picture: Image.Image
    seen: tuple[int, int]
    times: tuple[float, ...]
    horizon: float
    attention: Tensor
    query: str
    probabilities: Tensor
    speed: Tensor
    labels: Mapping[int, str]
    layers: Layers | None = None

    @property
    def middles(self) -> tuple[float, ...]:
        """The times in the middle of the steps, to which the speeds belong."""
        return tuple((a + b) / 2 for a, b in zip(self.times, self.times[1:], strict=False))

    def answer(self, t: float) -> tuple[str, float]:
        """The likeliest class at the time t and its probability."""
        share, number = between(self.probabilities, self.times, t).max(dim=-1)
        return self.label(int(number)), float(share)

    def label(self, number: int) -> str:
        """The name of a class; of a list of synonyms the first."""
        return self.labels.get(number, f"class {number}").split(",")[0]

    def likeliest(self, count: int = 3) -> list[int]:
        """The answer at the horizon, then the classes that came nearest to being it at any time."""
        final = between(self.probabilities, self.times, self.horizon)
        height = self.probabilities.amax(dim=0)
        height[final.argmax()] = torch.inf
        return height.topk(min(count, len(height))).indices.tolist()


def between(values: Tensor, times: Sequence[float], t: float) -> Tensor:
    """The value at t, on the straight line between its two neighbours in time; constant before and after all times.

    At the times themselves nothing is made up, between them it is what a line in a plot shows.
    """
    after = next((n for n, time in enumerate(times) if time >= t), len(times) - 1)
    before = max(after - 1, 0)
    gap = times[after] - times[before]
    share = min(max((t - times[before]) / gap, 0.0), 1.0) if gap > 0 else 1.0
    return torch.lerp(values[before], values[after], share)


@torch.no_grad()
def tell(
    subject: Subject,
    picture: Image.Image,
    name: str,
    *,
    steps: int | None = None,
    horizon: float | None = None,
    solver: str | None = None,
    beyond: float = 2.0,
    teacher: Teacher | None = None,
    shares: Sequence[float] | None = None,
) -> Story:
    """The story of one image, integrated with the model's own step size to `beyond` times the horizon.

    Args:
        subject: the model taken apart.
        picture: any image.
        name: of it.
        steps, horizon, solver: how to integrate; as the model does unless told otherwise.
        beyond: how far to go, in horizons; rounded to a whole number of steps.
        teacher: whom the model was distilled from.
        shares: of the horizon, one for each layer of the teacher; equal ones unless given.
    """
    own_steps, own_horizon = steps or subject.steps, horizon or subject.horizon
    total = max(own_steps, round(own_steps * beyond))
    processor: Any = image_processor(subject)
    readable = picture.convert("RGB" if processor.do_convert_rgb else "L")
    pixels = processor(readable, return_tensors="pt")["pixel_values"].to(subject.device)
    path = attention_over_time(subject, pixels, steps=total, horizon=own_horizon * total / own_steps, solver=solver)
    with untouched(subject.model):
        probabilities = torch.stack([subject.logits(state)[0].float().softmax(-1) for state in path.states])
    layers = None
    if teacher is not None:
        seen = teacher_attention(teacher, pixels).mean[:, 0]
        spans = torch.tensor(shares or [1.0 / len(seen)] * len(seen), dtype=torch.float64) * own_horizon
        starts = (spans.cumsum(0) - spans).tolist()
        layers = Layers(seen.float().cpu(), tuple(starts))
    return Story(
        name=name,
        picture=picture,
        seen=(pixels.shape[-1], pixels.shape[-2]),
        times=path.times,
        horizon=own_horizon,
        attention=path.mean[:, 0].float().cpu(),
        query=path.query,
        probabilities=probabilities.cpu(),
        speed=_speed(path).cpu(),
        labels=subject.labels,
        layers=layers,
    )


def _speed(path: AttentionPath) -> Tensor:
    """|x_{n+1} - x_n| / (h |x_{n+1}|): that of the steps themselves, which come to rest where the method does."""
    states = torch.stack(path.states).flatten(1).double()
    gaps = torch.tensor(path.times, dtype=torch.float64, device=states.device).diff()
    return states.diff(dim=0).norm(dim=-1) / gaps / states[1:].norm(dim=-1)
