"""(x(t) - mean) V, V the two directions of largest variance: trajectories in a plane (the paper's Fig. 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.offsetbox import AnnotationBbox, OffsetImage
from torch import Tensor

from odevit.analysis.plane import Plane
from odevit.analysis.settling import FAR
from odevit.plotting import COLOURS, GREY, finish_figure, make_figure, unique_labels
from odevit.report.section import SECTIONS, Figures, Numbers, Section
from odevit.report.study import Study
from odevit.tokens import TokenLayout

CLASSES, OF_EACH = 6, 2
"""Classes in the plane, and images of each."""
STUDENT: dict[str, Any] = {"linewidth": 1.8, "marker": "o", "markersize": 4}
TEACHER: dict[str, Any] = {"linewidth": 1.2, "linestyle": ":", "marker": "s", "markersize": 5, "mfc": "white"}
LINK: dict[str, Any] = {"linewidth": 0.8, "color": "0.75"}
MARKS: dict[str, dict[str, Any]] = {
    "start x(0)": {"marker": "o", "markersize": 7, "markerfacecolor": "white"},
    "its horizon": {"marker": "|", "markersize": 12, "markeredgewidth": 2},
    "eight horizons": {"marker": "*", "markersize": 13, "markeredgecolor": "white"},
}


@SECTIONS.register("trajectories")
class Trajectories(Section):
    """Paths of a few images from the embedding to rest."""

    title = "Where do they go?"
    order = 30
    text = """
{% call picture("plane", missing="Left out: " ~ paths.why | default("")) %}A few images, up to two per class, from the
embedded image to eight horizons. Distances in the plane are smaller than the true ones.{% endcall %}
"""

    @torch.no_grad()
    def measure(self, study: Study) -> dict[str, Any]:
        """A few trajectories, up to `FAR` horizons, in the plane in which they vary most together."""
        sample, model, N = study.sample, study.model, study.solver_config.steps
        x0 = sample.chunks[0]["x0"]
        chosen = _few_of_each(sample.labels[: len(x0)])
        far = study.solver_config.stretched(FAR)
        saved = sorted({*range(N + 1), *range(N, far.steps + 1, max(1, N // 4)), far.steps})
        solution = model.follow(x0[chosen], far, save=saved)
        layout = model.layout()
        states = torch.stack([pooled(model.to_teacher_space(state), layout) for state in solution.states]).cpu()
        if not torch.isfinite(states).all():
            return {"paths": {"images": 0, "paths": [], "why": "the trajectories are not finite"}}
        plane = pca_paths(states, states[-1:])
        names = sample.names(len(x0))
        return {
            "paths": {
                "images": len(chosen),
                "token": "CLS" if layout.has_cls else "mean of the patches",
                "explained": plane.explained,
                "times": solution.times,
                "horizon_at": saved.index(N),
                "paths": [
                    {"image": int(sample.indices[i]), "class": names[i], "points": path}
                    for i, path in zip(chosen, plane.student, strict=True)
                ],
            }
        }

    def draw(self, numbers: Numbers, pictures: Tensor) -> Figures:
        return {"plane": draw_plane(numbers["paths"])} if numbers["paths"]["images"] else {}


@dataclass(frozen=True)
class Paths:
    """Trajectories [image, step or layer, 2] in one plane, and the share of the variance along each of its axes."""

    student: Tensor
    teacher: Tensor
    explained: tuple[float, float]


def pca_paths(student_states: Tensor, teacher_states: Tensor) -> Paths:
    """Both trajectories, [step, image, dim] and [layer, image, dim], in the plane in which they vary most together.

    The axes are those of both together: the axes of the teacher alone would hide deviations of the student.
    """
    if student_states.ndim != 3 or student_states.shape[1:] != teacher_states.shape[1:]:
        raise ValueError(
            f"the student's states are {list(student_states.shape)}, the teacher's {list(teacher_states.shape)}; "
            "expected [step, image, dim] and [layer, image, dim] of the same images and width: select one token"
        )
    plane = Plane.through(student_states, teacher_states)
    student, teacher = (plane.points(states).transpose(0, 1) for states in (student_states, teacher_states))
    return Paths(student, teacher, plane.explained)


def pooled(state: Tensor, layout: TokenLayout) -> Tensor:
    """The token that the head reads [image, dim]: CLS where there is one, otherwise the mean of the patches."""
    return state[:, layout.cls if layout.has_cls else layout.patches].mean(dim=1)


def draw_plane(paths: Numbers) -> Figure:
    """Paths of a few images from start to rest, coloured by class."""
    figure, (axes,) = make_figure(4.8)
    colours: dict[str, str] = {}
    for path in paths["paths"]:
        colour = colours.setdefault(path["class"], COLOURS[len(colours) % len(COLOURS)])
        x, y = zip(*path["points"], strict=True)
        axes.plot(x, y, color=colour, linewidth=1.4, marker=".", markersize=4, alpha=0.9)
        for n, style in zip((0, paths["horizon_at"], -1), MARKS.values(), strict=True):
            axes.plot(x[n], y[n], color=colour, **style)
    kinds = [Line2D([], [], color=GREY, linestyle="", **style, label=name) for name, style in MARKS.items()]
    names = [Line2D([], [], color=colour, linewidth=2, label=name) for name, colour in colours.items()]
    axes.legend(handles=[*kinds, *names], frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    _name_axes(axes, paths["explained"])
    return finish_figure(figure, f"{paths['images']} trajectories in the plane of largest variance ({paths['token']})")


def draw_paths(paths: Paths, layer_steps: Sequence[int], pictures: Tensor, names: Sequence[str]) -> Figure:
    """Paths of student and teacher for a few images, with a line from every layer to the student's step for it."""
    figure, (axes,) = make_figure(5.0)
    labels = unique_labels(names)
    for i, (student, teacher) in enumerate(zip(paths.student, paths.teacher, strict=True)):
        colour = COLOURS[i % len(COLOURS)]
        for layer, step in enumerate(layer_steps, start=1):
            axes.plot(*torch.stack([student[step], teacher[layer]]).T, **LINK, zorder=1)
        axes.plot(*teacher.T, **TEACHER, color=colour, zorder=2)
        axes.plot(*student.T, **STUDENT, color=colour, label=labels[i], zorder=3)
        _pin(axes, pictures[i], teacher, colour)
    kinds = [
        Line2D([], [], **STUDENT, color="0.3", label="student, a dot per step"),
        Line2D([], [], **TEACHER, color="0.3", label="teacher, a square per layer"),
        Line2D([], [], **LINK, label="trained to match"),
    ]
    figure.legend(handles=kinds, loc="outside upper center", ncols=3, frameon=False)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    axes.margins(0.16)
    _name_axes(axes, paths.explained)
    return finish_figure(figure)


def _name_axes(axes: Any, explained: Sequence[float]) -> None:
    first, second = (f"principal component ({share:.0%} of the variance)" for share in explained)
    axes.set(xlabel=f"1st {first}", ylabel=f"2nd {second}")
    axes.grid(alpha=0.3)


def _pin(axes: Any, picture: Tensor, path: Tensor, colour: str) -> None:
    """Put a picture near the end of its path, in the direction from the start."""
    direction = path[-1] - path[0]
    (x, y), (right, up) = path[-1].tolist(), (30 * direction / direction.norm().clamp_min(1e-12)).tolist()
    rgb = picture[:3] if len(picture) >= 3 else picture[:1].expand(3, -1, -1)
    image = OffsetImage(rgb.permute(1, 2, 0).clamp(0, 1).numpy(), zoom=30 / picture.shape[1])
    frame = {"edgecolor": colour, "linewidth": 1.6}
    axes.add_artist(AnnotationBbox(image, (x, y), (right, up), boxcoords="offset points", pad=0.15, bboxprops=frame))


def _few_of_each(labels: Tensor) -> list[int]:
    """Indices of the first images of a few classes."""
    groups: dict[int, list[int]] = {}
    for image, label in enumerate(labels.tolist()):
        if label in groups or len(groups) < CLASSES:
            groups.setdefault(label, []).append(image)
    return [image for images in groups.values() for image in images[:OF_EACH]]
