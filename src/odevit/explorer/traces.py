"""image, model, way -> everything the explorer shows of one image: a story, its heads, its path, what it cost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from PIL import Image
from torch import Tensor

from odevit.analysis.attention import AttentionPath, attention_over_time, attention_path
from odevit.analysis.base import frozen
from odevit.core.image_model import ImageModel
from odevit.core.solver_config import SolverConfig
from odevit.distill.teacher import Teacher
from odevit.explorer.frame_data import SIDE, FrameData, story_of
from odevit.hf.processor import make_image_processor, pixel_values, pixels_uint8
from odevit.surgery.head import readout_weights_of
from odevit.surgery.modeling_student import OdeStudent
from odevit.surgery.surgery import get_ode_model
from odevit.tokens import Tokens

BEYOND = 2.0
"""Horizons that are shown: up to the answer, and as far again, to see whether the state rests there."""


@dataclass(frozen=True)
class Answer:
    """The likeliest class of an image and its probability, the evaluations that it took, and the time."""

    label: str
    share: float
    nfe: int
    milliseconds: float


@dataclass(frozen=True)
class Journey:
    """What one image goes through in one model.

    Args:
        story: times, probabilities, the mean over heads of the attention.
        answer: at the horizon, in the way that was chosen.
        usual: what the model answers in its own way; the same object where that is the way that was chosen.
        heads: a_h(t_n) [time, head, row, column].
        rolled: the rollout of the attention up to t_n [time, row, column].
        read: what the head reads of x(t_n), CLS or a mean of the patches, in the width of a teacher [time, dim].
        layers: the same of a teacher's h_0, ..., h_L [layer + 1, dim]; None without one.
        way: how it was integrated; None for a stack of layers, whose numbers stand in the place of time.
    """

    story: FrameData
    answer: Answer
    usual: Answer
    heads: Tensor
    rolled: Tensor
    read: Tensor
    layers: Tensor | None
    solver_config: SolverConfig | None

    @property
    def changed(self) -> bool:
        """Whether this way gives another answer than the model's own."""
        return self.answer.label != self.usual.label

    @property
    def beyond(self) -> float:
        """How far it goes, in horizons."""
        return self.story.times[-1] / self.story.horizon


@torch.no_grad()
def travel(
    model: ImageModel,
    picture: Image.Image,
    name: str = "picture",
    *,
    solver_config: SolverConfig | None = None,
    beyond: float = BEYOND,
    teacher: Teacher | None = None,
    shares: Sequence[float] | None = None,
) -> Journey:
    """The journey of one picture through a model with a trajectory.

    Args:
        model: a model with a trajectory.
        picture: in RGB.
        name: of the picture.
        way: how to integrate; the model's own unless given.
        beyond: how far to go, in horizons.
        teacher: whose layers are shown beside the path.
        shares: of the horizon that belong to each of its layers; equal ones unless given.
    """
    solver_config, pixels = solver_config or model.solver_config, model.pixels_of(picture)
    with frozen(model):
        answer = _asked(model, pixels, solver_config)
        usual = answer if solver_config == model.solver_config else _asked(model, pixels, model.solver_config)
    path = attention_over_time(model, pixels, solver_config.stretched(beyond), rolled=True)
    story = story_of(model, picture, name, path, solver_config, teacher=teacher, shares=shares)
    read = torch.stack([what_is_read(model, state)[0] for state in path.states])
    layers = None if teacher is None else _layers_read(teacher, teacher.states(pixels))
    return _journey(story, answer, usual, path, read, layers, solver_config)


@torch.no_grad()
def climb(teacher: Teacher, lens: OdeStudent, picture: Image.Image, name: str = "picture") -> Journey:
    """The journey of one picture through the layers of a ViT: layer l stands at the time l.

    Args:
        teacher: the ViT.
        lens: what reads a state in the middle of it as if it were the last, see `lens_of`.
        picture: in RGB.
        name: of the picture.
    """
    processor = teacher.processor or make_image_processor(lens.config)
    pixels = pixel_values(processor, picture).to(next(teacher.parameters()).device)
    began = time.perf_counter()
    logits, solution = teacher.ask(pixels)
    answer = _answered(logits, lens.labels, solution.stats.nfe, began)
    output, layout = teacher(pixels, attentions=True), teacher.layout(pixels)
    # The state after the last layer makes no map of its own: it keeps the last one.
    maps = (*output.attentions, output.attentions[-1])
    path = attention_path(
        range(len(output.states)),
        output.states,
        maps,
        layout,
        partial(readout_weights_of, teacher.model, layout=layout),
        residual=[0.5] * len(maps),
    )
    with frozen(lens):
        probabilities = torch.cat([lens.readout(state).float() for state in output.states]).softmax(-1)
    # Exactly its own answer at the end.
    probabilities[-1] = logits[0].float().softmax(-1)
    states = torch.cat(output.states).flatten(1).double()
    finer = max(1, min(*picture.size, SIDE) // max(lens.image_size))
    story = FrameData(
        name=name,
        picture=Image.fromarray(pixels_uint8(processor, picture, finer).transpose(1, 2, 0).squeeze()),
        seen=(pixels.shape[-1], pixels.shape[-2]),
        times=path.times,
        horizon=path.times[-1],
        attention=path.mean[:, 0].float().cpu(),
        query=path.query,
        probabilities=probabilities.cpu(),
        speed=(states.diff(dim=0).norm(dim=-1) / states[1:].norm(dim=-1)).cpu(),
        labels=lens.labels,
    )
    return _journey(story, answer, answer, path, _layers_read(teacher, output.states), None, None)


def lens_of(teacher: Teacher) -> OdeStudent:
    """Norm and head of a ViT around nothing: its `readout` says what the head would make of any state in between."""
    return get_ode_model(teacher.model, vit_spec=teacher.vit_spec).eval().requires_grad_(False)


def what_is_read(model: ImageModel, state: Tokens) -> Tensor:
    """sum_i w_i x_i, w_i the weight of token i in what the head reads [batch, dim]; as wide as a teacher's."""
    weights, _ = model.readout_weights(state)
    outside = model.to_teacher_space(state)
    return torch.einsum("bi,bid->bd", weights[:, : outside.shape[1]].to(outside), outside).float().cpu()


def _layers_read(teacher: Teacher, states: Sequence[Tokens]) -> Tensor:
    layout = teacher.layout()
    rows = []
    for state in states:
        weights, _ = readout_weights_of(teacher.model, state, layout=layout)
        rows.append(torch.einsum("bi,bid->bd", weights.to(state), state)[0])
    return torch.stack(rows).float().cpu()


def _asked(model: ImageModel, pixels: Tensor, solver_config: SolverConfig) -> Answer:
    began = time.perf_counter()
    logits, solution = model.ask(pixels, solver_config)
    solution.require("this way gives no answer")
    return _answered(logits, model.labels, solution.stats.nfe, began)


def _answered(logits: Tensor, labels: dict[int, str], nfe: int, began: float) -> Answer:
    share, number = logits[0].float().softmax(-1).max(dim=-1)  # waits for the device
    label = labels.get(int(number), f"class {int(number)}").split(",")[0]
    return Answer(label, float(share), nfe, 1000 * (time.perf_counter() - began))


def _journey(
    story: FrameData,
    answer: Answer,
    usual: Answer,
    path: AttentionPath,
    read: Tensor,
    layers: Tensor | None,
    solver_config: SolverConfig | None,
) -> Journey:
    assert path.rolled is not None  # asked for
    heads, rolled = path.heads[:, 0].float().cpu(), path.rolled[:, 0].float().cpu()
    return Journey(story, answer, usual, heads, rolled, read, layers, solver_config)
