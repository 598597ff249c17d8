"""Distance to the teacher against who is right (the paper's Fig. 4 and 10)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from odevit.report.figures.style import BLUE, GREEN, GREY, ORANGE, YELLOW, finish, make_figure, signed

GROUP_COLOURS = {"both right": GREEN, "only teacher": YELLOW, "only student": BLUE, "both wrong": ORANGE}


def draw_correctness(teacher: Mapping[str, Any]) -> Figure:
    """Both distances of every image at the last layer, in strips by who is right (the paper's Fig. 4)."""
    figure, panels = make_figure(3.8, 2, sharey=True)
    groups, names = np.array(teacher["groups"]), teacher["group_names"]
    for axes, (kind, found) in zip(panels, _kinds(teacher), strict=True):
        distances, scatter = np.array(found["distances"], float), np.random.default_rng(0)
        for number, name in enumerate(names):
            here = distances[groups == number]
            heights = number + scatter.uniform(-0.3, 0.3, len(here))
            axes.scatter(here, heights, s=9, color=GROUP_COLOURS[name], alpha=0.6, linewidth=0)
            if len(here):
                axes.plot([np.median(here)] * 2, [number - 0.4, number + 0.4], color="black", linewidth=2)
        axes.set(xlabel=kind)
        axes.grid(alpha=0.3, axis="x")
    counts = [int((groups == number).sum()) for number in range(len(names))]
    labels = [f"{name}\n{count:,}" for name, count in zip(names, counts, strict=True)]
    panels[0].set_yticks(range(len(names)), labels=labels)
    panels[0].invert_yaxis()
    return finish(
        figure, f"Distance to the teacher at the last layer ({teacher['token']}) by who is right; black: medians"
    )


def draw_bins(teacher: Mapping[str, Any]) -> Figure:
    """Shares of who is right by either distance, equally many images a bar (the paper's Fig. 10)."""
    figure, panels = make_figure(3.9, 2, sharey=True)
    for axes, (kind, found) in zip(panels, _kinds(teacher), strict=True):
        bins = found["bins"]
        base = np.zeros(len(bins))
        for name in teacher["group_names"]:
            shares = np.array([100 * each[name] / each["images"] for each in bins])
            axes.bar(range(len(bins)), shares, bottom=base, color=GROUP_COLOURS[name], label=name, width=0.85)
            base += shares
        edges = [bins[0]["low"], *(each["high"] for each in bins)]
        places = np.arange(len(edges)) - 0.5
        axes.set_xticks(places, labels=[f"{edge:.3g}" for edge in edges], fontsize=9, rotation=45)
        axes.set(xlabel=kind, ylim=(0, 100))
        first, last = (100 * bins[i]["both right"] / bins[i]["images"] for i in (0, -1))
        axes.set_title(f"both right: {first:.0f}% of the nearest, {last:.0f}% of the farthest", fontsize=10)
    panels[0].set(ylabel="images (%)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return finish(figure, f"Who is right, by distance to the teacher at the last layer ({teacher['token']})")


def _kinds(teacher: Mapping[str, Any]) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """The distance as it is, and as a share of the teacher's norm."""
    return ("|x(T) − h|", teacher), ("|x(T) − h| / |h|", teacher["relative"])


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
