"""The panels of a frame: attention in colour over the image, probabilities and speed up to now."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.ticker import MaxNLocator, NullFormatter
from PIL import Image
from torch import Tensor

from odevit.analysis.attention import mass_threshold
from odevit.film.story import Story, between
from odevit.look import COLOURS, outline

TEXT: dict[str, Any] = {"fontsize": 9}
QUIET: dict[str, Any] = {"fontsize": 8, "color": "0.4"}
LEADERS = COLOURS[:3]
"""One colour for each class whose probability is drawn."""

FAINT: dict[str, Any] = {"cmap": "gray", "vmin": -100, "vmax": 355}
"""Grey levels drawn closer together than they are: the image must not outshine what is shown over it."""


class Overlay:
    """The image in grey, the attention over it in colour, and an outline around the patches that hold `mass` of it.

    Args:
        axes: where to draw.
        picture: the image.
        maps: every attention map [..., row, column] that will be shown, so that a colour means the same in all frames.
        mass: share of the attention.
    """

    def __init__(self, axes: Axes, picture: Image.Image, maps: Tensor, mass: float) -> None:
        self.axes, self.mass, self.size = axes, mass, picture.size
        extent = (0.0, float(picture.width), float(picture.height), 0.0)
        axes.imshow(picture.convert("L"), extent=extent, interpolation="nearest", **FAINT)
        self.colours = axes.imshow(
            np.zeros(maps.shape[-2:]),
            cmap="inferno",
            alpha=0.7,
            extent=extent,
            interpolation="bilinear",
            vmin=100 * float(maps.min()),
            vmax=100 * float(maps.max()),
        )
        self.outline = LineCollection([], colors="white", linewidths=1.2)
        axes.add_collection(self.outline)
        bare(axes)

    def show(self, attention: Tensor) -> None:
        """Show one map [row, column]."""
        self.colours.set_data(100 * attention.numpy())
        holders = mass_threshold(attention.flatten(), self.mass).view_as(attention)
        self.outline.set_segments(outline(holders, *self.size))

    def add_colour_bar(self) -> None:
        """Explain the colours beside the panel."""
        bar = self.axes.figure.colorbar(self.colours, ax=self.axes, shrink=0.7, pad=0.02, aspect=18)
        bar.ax.set_facecolor("0.5")  # half transparent over grey, as on the image
        bar.ax.yaxis.set_major_locator(MaxNLocator(4))
        bar.ax.tick_params(labelsize=7, length=2)
        bar.set_label("% per patch", **QUIET)
        bar.outline.set_visible(False)


class Trace:
    """A line up to now, with a point at its end.

    Args:
        axes: where to draw; on a logarithmic axis the line is straight between its points there.
        times, values: all of them.
        colour: of the line.
    """

    def __init__(self, axes: Axes, times: tuple[float, ...], values: Tensor, colour: str) -> None:
        self.times, self.values, self.logarithmic = times, values, axes.get_yscale() == "log"
        self.line = axes.plot([], [], color=colour, linewidth=1.8)[0]
        self.point = axes.plot([], [], "o", color=colour, markersize=5)[0]

    def move(self, t: float) -> None:
        """Draw the line up to the time t."""
        scaled = between(self.values.log() if self.logarithmic else self.values, self.times, t)
        now = float(scaled.exp() if self.logarithmic else scaled)
        past = [n for n, time in enumerate(self.times) if time < t]
        self.line.set_data([*(self.times[n] for n in past), t], [*self.values[past].tolist(), now])
        self.point.set_data([t], [now])


def plot_belief(axes: Axes, story: Story) -> list[Trace]:
    """The probabilities of the answer and of its closest rivals."""
    classes = story.likeliest(len(LEADERS))
    traces = [
        Trace(axes, story.times, 100 * story.probabilities[:, number], colour)
        for number, colour in zip(classes, LEADERS, strict=False)
    ]
    axes.set(ylim=(-4, 104), yticks=[0, 50, 100])
    axes.set_ylabel("probability (%)", **TEXT)
    axes.legend(
        [trace.line for trace in traces],
        [short(story.label(number), 16) for number in classes],
        ncols=len(classes),
        loc="lower left",
        bbox_to_anchor=(-0.02, 1.0),
        frameon=False,
        fontsize=8,
        handlelength=1,
        columnspacing=1,
        borderpad=0.1,
    )
    _time_axis(axes, story)
    return traces


def plot_speed(axes: Axes, story: Story) -> Trace:
    """|dx/dt| / |x|, with what is still to come in grey."""
    speed = story.speed.clamp_min(1e-9)  # a model may come to rest exactly, and zero has no logarithm
    axes.semilogy(story.middles, speed, color="0.85", linewidth=1.2)
    # Whole powers of ten, so that the axis has a label at either end.
    low, high = math.floor(math.log10(float(speed.min()))), math.ceil(math.log10(float(speed.max())))
    axes.set_ylim(10.0**low, 10.0 ** max(high, low + 1))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("|dx/dt| / |x|", **TEXT)
    place = {"xycoords": ("data", "axes fraction"), "xytext": (4, 0), "textcoords": "offset points", "va": "top"}
    axes.annotate("horizon", (story.horizon, 0.98), **place, **QUIET)
    _time_axis(axes, story)
    return Trace(axes, story.middles, speed, "0.2")


def bare(axes: Axes) -> None:
    """Draw nothing around a picture."""
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def short(text: str, length: int) -> str:
    """The text, cut off with an ellipsis where it would not fit."""
    return text if len(text) <= length else text[: length - 1] + "…"


def _time_axis(axes: Axes, story: Story) -> None:
    axes.set_xlim(0, story.times[-1] * 1.02)
    axes.set_xlabel("integration time t", **TEXT)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.axvline(story.horizon, color="0.55", linestyle=":", linewidth=1.2)
