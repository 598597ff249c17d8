"""Distance to the teacher against who is right (the paper's Fig. 4 and 10)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from odevit.report.figures.style import BLUE, GREEN, GREY, ORANGE, YELLOW, finish, make_figure, signed

GROUP_COLOURS = {"both right": GREEN, "only teacher": YELLOW, "only student": BLUE, "both wrong": ORANGE}


def draw_correctness(teacher: Mapping[str, Any]) -> Figure:
    """The distance of every image at the last layer, in strips by who is right (the paper's Fig. 4)."""
    figure, (axes,) = make_figure(3.8)
    distances, groups = np.array(teacher["distances"], float), np.array(teacher["groups"])
    scatter = np.random.default_rng(0)
    names = teacher["group_names"]
    for number, name in enumerate(names):
        here = distances[groups == number]
        heights = number + scatter.uniform(-0.3, 0.3, len(here))
        axes.scatter(here, heights, s=9, color=GROUP_COLOURS[name], alpha=0.6, linewidth=0)
        if len(here):
            axes.plot([np.median(here)] * 2, [number - 0.4, number + 0.4], color="black", linewidth=2)
    counts = [int((groups == number).sum()) for number in range(len(names))]
    axes.set_yticks(range(len(names)), labels=[f"{name}\n{count:,}" for name, count in zip(names, counts, strict=True)])
    axes.invert_yaxis()
    axes.set(xlabel=f"distance to the teacher at the last layer, |x(T) − h| ({teacher['token']})")
    axes.grid(alpha=0.3, axis="x")
    return finish(figure, "Distance to the teacher and who is right (black: medians)")


def draw_bins(teacher: Mapping[str, Any]) -> Figure:
    """Shares of who is right by distance, equally many images a bar (the paper's Fig. 10)."""
    figure, (axes,) = make_figure(3.6)
    bins = teacher["bins"]
    base = np.zeros(len(bins))
    for name in teacher["group_names"]:
        shares = np.array([100 * each[name] / each["images"] for each in bins])
        axes.bar(range(len(bins)), shares, bottom=base, color=GROUP_COLOURS[name], label=name, width=0.85)
        base += shares
    axes.set_xticks(range(len(bins)), labels=[f"{each['low']:.3g}–\n{each['high']:.3g}" for each in bins], fontsize=9)
    axes.set(xlabel="distance to the teacher at the last layer", ylabel="images (%)", ylim=(0, 100))
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    first, last = (100 * bins[i]["both right"] / bins[i]["images"] for i in (0, -1))
    return finish(figure, f"Both right: {first:.0f}% of the nearest images, {last:.0f}% of the farthest")


def draw_layers(teacher: Mapping[str, Any]) -> Figure:
    """The distance at every checkpoint: the median image and the middle 80%."""
    figure, (axes,) = make_figure(3.4)
    layers, by_layer = range(1, teacher["layers"] + 1), teacher["by_layer"]
    axes.plot(layers, by_layer["standstill"], color=GREY, linestyle="--", label="if it stood still")
    axes.fill_between(layers, by_layer["low"], by_layer["high"], color=BLUE, alpha=0.2, linewidth=0, label="middle 80%")
    axes.plot(layers, by_layer["median"], color=BLUE, marker="o", markersize=5, label="student, median image")
    axes.set(
        xlabel="layer of the teacher", ylabel=f"distance ({teacher['token']})", ylim=(0, None), xticks=list(layers)
    )
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    last, still = by_layer["median"][-1], by_layer["standstill"][-1]
    return finish(figure, f"Distance at the last layer: {signed(last)}, against {signed(still)} without moving")
