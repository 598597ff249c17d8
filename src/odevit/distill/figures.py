"""Pictures of a distillation: who goes where, how far from whom, and when they meet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.offsetbox import AnnotationBbox, OffsetImage
from torch import Tensor

from odevit.distill.alignment import Alignment
from odevit.distill.paths import Paths

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")  # Okabe-Ito: told apart by colour-blind readers too
STUDENT: dict[str, Any] = {"linewidth": 1.8, "marker": "o", "markersize": 4}
TEACHER: dict[str, Any] = {"linewidth": 1.2, "linestyle": ":", "marker": "s", "markersize": 5, "mfc": "white"}
THREAD: dict[str, Any] = {"linewidth": 0.8, "color": "0.75"}


def draw_paths(paths: Paths, meetings: Sequence[int], pictures: Tensor, names: Sequence[str]) -> Figure:
    """Trajectories of a few images in their plane, a thread from every layer to the step that should meet it.

    Args:
        paths: of as many images as there are pictures.
        meetings: for each layer 1..L, the number of that step.
        pictures: [image, channel, height, width] in 0..1.
        names: what to call the images.
    """
    figure = _figure(5.0)
    axes = figure.subplots()
    for number, (student, teacher) in enumerate(zip(paths.student, paths.teacher, strict=True)):
        colour = COLOURS[number % len(COLOURS)]
        for layer, step in enumerate(meetings, start=1):
            axes.plot(*torch.stack([student[step], teacher[layer]]).T, **THREAD, zorder=1)
        axes.plot(*teacher.T, **TEACHER, color=colour, zorder=2)
        axes.plot(*student.T, **STUDENT, color=colour, label=names[number], zorder=3)
        _pin(axes, pictures[number], teacher, colour)
    kinds = [
        Line2D([], [], **STUDENT, color="0.3", label="student, a dot a step"),
        Line2D([], [], **TEACHER, color="0.3", label="teacher, a square a layer"),
        Line2D([], [], **THREAD, label="should meet"),
    ]
    figure.legend(handles=kinds, loc="outside upper center", ncols=3, frameon=False)
    axes.legend(frameon=False)
    axes.margins(0.16)
    first, second = paths.explained
    axes.set(
        xlabel=f"1st principal component ({first:.0%} of the variance)",
        ylabel=f"2nd principal component ({second:.0%} of the variance)",
    )
    return _tidied(figure)


def draw_distances(student: Mapping[str, Tensor], standstill: Mapping[str, Tensor]) -> Figure:
    """How far the student passes from each layer of its teacher: the median image, and the middle 80% of them.

    Args:
        student: for each group of tokens, what `teacher_distances` gives.
        standstill: for the same groups, what `standstill_distances` gives, to read them by.
    """
    figure = _figure(3.4)
    columns = figure.subplots(1, len(student), squeeze=False, sharey=True)[0]
    for axes, (name, distances), colour in zip(columns, student.items(), COLOURS, strict=False):
        layers = range(1, len(distances) + 1)
        low, middle, high = distances.quantile(torch.tensor([0.1, 0.5, 0.9]), dim=1)
        axes.plot(layers, standstill[name].median(dim=1).values, color="0.5", linestyle="--", label="if it stood still")
        axes.fill_between(layers, low, high, color=colour, alpha=0.2, linewidth=0, label="middle 80% of the images")
        axes.plot(layers, middle, color=colour, **STUDENT, label="student, median image")
        axes.set(title=name, xlabel="layer of the teacher", xticks=_ticks(len(distances)))
        axes.legend(frameon=False, fontsize=9)
    columns[0].set_ylim(bottom=0)
    columns[0].set_ylabel("distance of a token, |x − h|")
    return _tidied(figure)


def draw_alignment(alignment: Alignment, steps: int, horizon: float) -> Figure:
    """Two rails: the teacher's layers where its way has taken them, and the student's steps that meet them.

    Args:
        alignment: as measured.
        steps: N.
        horizon: T.
    """
    figure = _figure(2.3)
    axes = figure.subplots()
    way = torch.tensor((0.0, *alignment.distances)).cumsum(0)
    layers = horizon * way / way[-1]
    times = torch.linspace(0, horizon, steps + 1)
    meetings = (0, *alignment.indices(steps))
    for layer, step in enumerate(meetings):
        axes.plot([times[step], layers[layer]], [0, 1], **THREAD)
        axes.annotate(f"{layer}", (layers[layer], 1), xytext=(0, 8), textcoords="offset points", ha="center")
        axes.annotate(f"{step}", (times[step], 0), xytext=(0, -16), textcoords="offset points", ha="center")
    axes.plot(layers, torch.ones_like(layers), **TEACHER, color=COLOURS[1], clip_on=False)
    axes.plot(times, torch.zeros_like(times), **STUDENT, color=COLOURS[0], clip_on=False)
    axes.set_yticks([0, 1], ["student's steps", "teacher's layers"])
    axes.set(ylim=(-0.6, 1.5), xlabel="integration time t")
    figure = _tidied(figure)
    axes.grid(False)
    axes.spines["left"].set_visible(False)
    axes.tick_params(left=False)
    return figure


def _pin(axes: Any, picture: Tensor, path: Tensor, colour: str) -> None:
    """Put a picture at the end of its path, a little further on in the direction in which it went."""
    direction = path[-1] - path[0]
    (x, y), (right, up) = path[-1].tolist(), (30 * direction / direction.norm().clamp_min(1e-12)).tolist()
    rgb = picture[:3] if len(picture) >= 3 else picture[:1].expand(3, -1, -1)
    image = OffsetImage(rgb.permute(1, 2, 0).clamp(0, 1).numpy(), zoom=30 / picture.shape[1])
    frame = {"edgecolor": colour, "linewidth": 1.6}
    axes.add_artist(AnnotationBbox(image, (x, y), (right, up), boxcoords="offset points", pad=0.15, bboxprops=frame))


def _ticks(layers: int) -> list[int]:
    """Every layer, or every second or fourth one where there are many."""
    apart = 1 if layers <= 12 else 2 if layers <= 24 else 4
    return list(range(apart, layers + 1, apart))


def _figure(height: float) -> Figure:
    return Figure(figsize=(8, height), layout="constrained", dpi=130)


def _tidied(figure: Figure) -> Figure:
    for axes in figure.axes:
        axes.grid(alpha=0.3)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    return figure
