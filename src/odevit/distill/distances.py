"""|x(tau_l T) - h_l|: how far a student is from each layer of its teacher, image by image."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from odevit.distill.alignment import Alignment
from odevit.distill.student import OdeStudent
from odevit.distill.teacher import Teacher
from odevit.errors import unknown_name
from odevit.model.layout import TokenLayout
from odevit.shapes import Tokens

GROUPS = ("all", "cls", "patches", "registers")


@torch.no_grad()
def teacher_distances(
    student: OdeStudent,
    teacher: Teacher,
    alignment: Alignment,
    batches: Iterable[Mapping[str, Tensor]],
    *,
    tokens: str = "all",
    steps: int | None = None,
) -> Tensor:
    """mean over tokens of |x(tau_l T) - h_l| for every layer l = 1..L and every image: [layer, image], on the CPU.

    Args:
        student: walks on its own from the embedded image; its states are read in the teacher's width.
        teacher: gives h_1, ..., h_L.
        alignment: which step meets which layer.
        batches: with `pixel_values`, as `evaluation_batches` gives them.
        tokens: whose distance: `all` of the teacher's tokens, `cls` (the paper's Fig. 4), `patches` or `registers`.
        steps: N, over the student's own horizon; its own number unless given.
    """
    meetings = alignment.indices(student.encoder.depth.steps if steps is None else steps)
    found = []
    for batch in batches:
        pixels = batch["pixel_values"]
        place = _place(teacher.layout(pixels), tokens)
        # Step numbers, and no more: a long trajectory of a large batch need not be kept whole.
        met = student.states(pixels, steps=steps, save=meetings).states
        found.append(_gaps(met, teacher.states(pixels)[1:], place))
    return _joined(found)


@torch.no_grad()
def standstill_distances(teacher: Teacher, batches: Iterable[Mapping[str, Tensor]], *, tokens: str = "all") -> Tensor:
    """mean over tokens of |h_0 - h_l|, [layer, image]: what `teacher_distances` gives for a student that never moves.

    The scale to read distances by: a student is worth something as far as it stays below.
    """
    found = []
    for batch in batches:
        pixels = batch["pixel_values"]
        start, *layers = teacher.states(pixels)
        found.append(_gaps([start] * len(layers), layers, _place(teacher.layout(pixels), tokens)))
    return _joined(found)


def _gaps(ours: Sequence[Tokens], theirs: Sequence[Tokens], place: slice) -> Tensor:
    pairs = zip(ours, theirs, strict=True)
    return torch.stack([(x[:, place].float() - h[:, place].float()).norm(dim=-1).mean(dim=1) for x, h in pairs]).cpu()


def _joined(found: Sequence[Tensor]) -> Tensor:
    if not found:
        raise ValueError("no images to measure distances on: the batches are empty")
    return torch.cat(list(found), dim=1)


def _place(layout: TokenLayout, tokens: str) -> slice:
    """Where the tokens of a group stand."""
    if tokens not in GROUPS:
        raise ValueError(unknown_name("group of tokens", tokens, GROUPS))
    place: slice = slice(0, len(layout)) if tokens == "all" else getattr(layout, tokens)
    if place.start == place.stop:
        raise ValueError(f"tokens={tokens!r}, but the teacher has none of them; pass tokens='all'")
    return place
