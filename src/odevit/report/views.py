"""x(t) in a plane, P(x(T)) on the image: what can be looked at."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from odevit.analysis.attention import attention_over_time, mass_threshold, teacher_attention
from odevit.analysis.subject import Subject
from odevit.distill.paths import pca_paths
from odevit.distill.teacher import Teacher
from odevit.report.integration import FAR
from odevit.report.sample import Sample

CLASSES, OF_EACH = 6, 2
"""How many classes are shown in the plane, and how many images of each."""
SHOWN = 6
"""Images whose attention is shown."""
MASS = 0.6
"""Share of the attention that the outlined patches hold together."""


@torch.no_grad()
def path_numbers(subject: Subject, sample: Sample) -> dict[str, Any]:
    """A few trajectories, up to `FAR` horizons, in the plane in which they vary most together.

    The token is CLS where there is one, otherwise the mean of the patches.
    """
    labels, chunk = sample.labels, sample.chunks[0]
    chosen = _few_of_each(labels[: len(chunk["labels"])])
    N = subject.steps
    saved = sorted({*range(N + 1), *range(N, FAR * N + 1, max(1, N // 4)), FAR * N})
    x0 = chunk["x0"][chosen]
    solution = subject.solve(x0, steps=FAR * N, horizon=FAR * subject.horizon, save=saved)
    layout = subject.layout
    tokens = layout.cls if layout.has_cls else layout.patches
    states = torch.stack([subject.outside(state)[:, tokens].mean(dim=1) for state in solution.states]).cpu()
    if not torch.isfinite(states).all():
        return {"images": 0, "paths": [], "why": "the trajectories leave the finite numbers"}
    paths = pca_paths(states, states[-1:])
    return {
        "images": len(chosen),
        "token": "CLS" if layout.has_cls else "mean of the patches",
        "explained": list(paths.explained),
        "times": list(solution.times),
        "horizon_at": saved.index(N),
        "paths": [
            {"image": int(sample.numbers[i]), "class": sample.classes[int(labels[i])], "points": path}
            for i, path in zip(chosen, paths.student, strict=True)
        ],
    }


@torch.no_grad()
def attention_numbers(subject: Subject, sample: Sample, teacher: Teacher | None) -> dict[str, Any]:
    """What is looked at in a few images at the final state, and by the last layer of a teacher."""
    count = min(SHOWN, len(sample))
    pixels = sample.pixels(count)
    try:
        path = attention_over_time(subject, pixels)
    except ValueError as error:
        return {"images": 0, "why": str(error)}
    found: dict[str, Any] = {
        "images": count,
        "numbers": sample.numbers[:count],
        "names": [sample.classes[label] for label in sample.labels[:count].tolist()],
        "query": path.query,
        "maps": path.mean[-1],
        "outlined": _outlined(path.mean[-1]),
    }
    if teacher is not None:
        try:
            told = teacher_attention(teacher, pixels).mean[-1]
        except ValueError as error:
            return {**found, "teacher": None, "why_no_teacher": str(error)}
        found |= {"teacher": told, "teacher_outlined": _outlined(told)}
    return found


def _outlined(maps: Tensor) -> Tensor:
    return mass_threshold(maps.flatten(1), MASS).unflatten(1, maps.shape[1:])


def _few_of_each(labels: Tensor) -> list[int]:
    """The first images of a few classes."""
    found: dict[int, list[int]] = {}
    for number, label in enumerate(labels.tolist()):
        if label in found or len(found) < CLASSES:
            found.setdefault(label, []).append(number)
    return [number for numbers in found.values() for number in numbers[:OF_EACH]]
