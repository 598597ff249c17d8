"""Trajectories in a plane (the paper's Fig. 1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from odevit.distill.figures import draw_paths
from odevit.distill.paths import Paths
from odevit.report.figures.style import COLOURS, GREY, finish, make_figure


def draw_plane(paths: Mapping[str, Any]) -> Figure:
    """A few images from start to rest, coloured by class."""
    figure, (axes,) = make_figure(4.8)
    at = paths["horizon_at"]
    colours: dict[str, str] = {}
    for path in paths["paths"]:
        colour = colours.setdefault(path["class"], COLOURS[len(colours) % len(COLOURS)])
        x, y = zip(*path["points"], strict=True)
        axes.plot(x, y, color=colour, linewidth=1.4, marker=".", markersize=4, alpha=0.9)
        axes.plot(x[0], y[0], color=colour, marker="o", markersize=7, markerfacecolor="white")
        axes.plot(x[at], y[at], color=colour, marker="|", markersize=12, markeredgewidth=2)
        axes.plot(x[-1], y[-1], color=colour, marker="*", markersize=13, markeredgecolor="white")
    kinds = [
        Line2D([], [], color=GREY, marker="o", markerfacecolor="white", linestyle="", label="start x(0)"),
        Line2D([], [], color=GREY, marker="|", markersize=11, markeredgewidth=2, linestyle="", label="its horizon"),
        Line2D([], [], color=GREY, marker="*", markersize=11, linestyle="", label="eight horizons"),
    ]
    names = [Line2D([], [], color=colour, linewidth=2, label=name) for name, colour in colours.items()]
    axes.legend(handles=[*kinds, *names], frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    first, second = paths["explained"]
    axes.set(
        xlabel=f"1st principal component ({first:.0%} of the variance)",
        ylabel=f"2nd principal component ({second:.0%} of the variance)",
    )
    axes.grid(alpha=0.3)
    return finish(figure, f"{paths['images']} trajectories in the plane of largest variance ({paths['token']})")


def draw_both(paths: Mapping[str, Any], pictures: Tensor) -> Figure:
    """Student and teacher of a few images in one plane."""
    student, teacher = (torch.tensor(paths[key]) for key in ("student", "teacher"))
    first, second = paths["explained"]
    names = paths["names"]
    return draw_paths(Paths(student, teacher, (first, second)), paths["meetings"], pictures[: len(names)], names)
