"""Story, t -> picture: the image, what the model looks at, what it believes, how fast it still moves."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter
from PIL import Image, ImageOps
from torch import Tensor

from odevit.explorer.frame_data import SIDE, FrameData, between
from odevit.objectives.attention_matching import mass_threshold
from odevit.plotting import COLOURS, mask_outline, unique_labels

TEXT: dict[str, Any] = {"fontsize": 9}
QUIET: dict[str, Any] = {"fontsize": 8, "color": "0.4"}
LEADERS = COLOURS[:3]
"""One colour for each class whose probability is drawn."""
ALONE: list[Any] = [["image", "model", "belief"], ["image", "model", "speed"]]
BESIDE_A_TEACHER: list[Any] = [["image", "model", "teacher"], ["belief", "belief", "speed"]]


class Frames:
    """The pictures of a film, 800 pixels wide: laid out once, then moved through time."""

    def __init__(self, story: FrameData, mass: float) -> None:
        self.story, picture, alone = story, enlarged(story.picture), story.layers is None
        self.figure = Figure(figsize=(8.0, 3.2 if alone else 4.8), dpi=100, layout="constrained")
        widths, heights = [1, 1, 1.25 if alone else 1], [1.2 if alone else 1.7, 1]
        layout = ALONE if alone else BESIDE_A_TEACHER
        axes = self.figure.subplot_mosaic(layout, width_ratios=widths, height_ratios=heights)
        show_picture(axes["image"], picture)
        axes["image"].set_title(f"{short(story.name, 14)}, seen at {story.seen[0]} × {story.seen[1]}", **TEXT)
        self.answer = axes["image"].set_xlabel("", fontsize=10)
        self.model = Overlay(axes["model"], picture, story.attention, mass)
        self.model.add_scale()
        axes["model"].set_xlabel("\n".join(legend(story, mass)), **QUIET)
        if story.layers is not None:
            self.teacher = Overlay(axes["teacher"], picture, story.layers, mass)
            self.teacher.add_scale()
        self.traces = [*plot_belief(axes["belief"], story), plot_speed(axes["speed"], story)]
        if alone:  # the two plots share one time axis
            axes["belief"].tick_params(labelbottom=False)
            axes["belief"].set_xlabel("")
        # The layout is computed once and kept: nothing moves but what should.
        self.draw(story.horizon)
        self.figure.set_layout_engine("none")

    def draw(self, t: float) -> Image.Image:
        """The frame at time t."""
        story = self.story
        self.answer.set_text(answer(story, t))
        self.model.show(between(story.attention, story.times, t))
        self.model.axes.set_title(f"attention at t = {t:.2f}", **TEXT)
        if story.layers is not None:
            self.teacher.show(story.layers[story.layer(t)])
            self.teacher.axes.set_title(f"teacher, layer {story.layer(t) + 1} of {len(story.layers)}", **TEXT)
        for trace in self.traces:
            trace.move(t)
        canvas = FigureCanvasAgg(self.figure)
        canvas.draw()
        return Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")


def draw_strip(story: FrameData, times: Sequence[float], mass: float) -> Figure:
    """The image, then the attention and the answer at some times; the teacher's layers in a second row."""
    picture, rows = enlarged(story.picture), 1 if story.layers is None else 2
    figure = Figure(figsize=(1.7 * (len(times) + 1) + 0.5, 2.1 * rows + 0.2), dpi=120, layout="constrained")
    grid = figure.subplots(rows, len(times) + 1, squeeze=False)
    show_picture(grid[0, 0], picture)
    grid[0, 0].set_xlabel(short(story.name, 18), **TEXT)
    for column, t in enumerate(times, start=1):
        model = Overlay(grid[0, column], picture, story.attention, mass)
        model.show(between(story.attention, story.times, t))
        where = " (horizon)" if t == story.horizon else ""
        grid[0, column].set_xlabel(f"t = {t:.4g}{where}\n{answer(story, t)}", **TEXT)
        if story.layers is not None:
            grid[1, 0].set_axis_off()
            teacher = Overlay(grid[1, column], picture, story.layers, mass)
            teacher.show(story.layers[story.layer(t)])
            grid[1, column].set_xlabel(f"teacher, layer {story.layer(t) + 1}", **TEXT)
    model.add_scale(grid[0])
    if story.layers is not None:
        teacher.add_scale(grid[1])
    figure.supxlabel("; ".join(legend(story, mass)), **QUIET)
    return figure


def legend(story: FrameData, mass: float) -> tuple[str, str]:
    """What the colours and the outline of a map mean."""
    return f"query: {story.query}", f"outlined: {mass:.0%} of the attention"


class Overlay:
    """The image in grey, the attention over it in colour, and an outline around the patches that hold `mass` of it.

    `maps` are all that will be shown, [..., row, column], so that a colour means the same in every frame.
    """

    def __init__(self, axes: Axes, picture: Image.Image, maps: Tensor, mass: float) -> None:
        self.axes, self.mass, self.size = axes, mass, picture.size
        # Grey levels closer together than they are: the image must not outshine what is shown over it.
        extent = show_picture(axes, picture.convert("L"), cmap="gray", vmin=-100, vmax=355).get_extent()
        blank, low, high = np.zeros(maps.shape[-2:]), 100 * float(maps.min()), 100 * float(maps.max())
        style: dict[str, Any] = {"cmap": "inferno", "alpha": 0.7, "interpolation": "bilinear"}
        self.colours = axes.imshow(blank, vmin=low, vmax=high, extent=extent, **style)
        self.outline = LineCollection([], colors="white", linewidths=1.2)
        axes.add_collection(self.outline)

    def add_scale(self, beside: Any = None) -> None:
        """What the colours mean, beside these axes or its own."""
        place: dict[str, Any] = {"ax": self.axes if beside is None else beside, "shrink": 0.7, "pad": 0.02}
        scale = self.axes.figure.colorbar(self.colours, **place, aspect=18, ticks=MaxNLocator(4))
        scale.ax.set_facecolor("0.5")  # half transparent over grey, as on the image
        scale.ax.tick_params(labelsize=7, length=2)
        scale.set_label("% per patch", **QUIET)
        scale.outline.set_visible(False)

    def show(self, attention: Tensor) -> None:
        """Show one map [row, column]."""
        self.colours.set_data(100 * attention.numpy())
        holders = mass_threshold(attention.flatten(), self.mass).view_as(attention)
        self.outline.set_segments(mask_outline(holders, *self.size))


class Trace:
    """A line up to now, with a point at its end; on a logarithmic axis it is straight between its points there."""

    def __init__(self, axes: Axes, times: tuple[float, ...], values: Tensor, colour: str) -> None:
        self.times, self.values, self.logarithmic = times, values, axes.get_yscale() == "log"
        self.line = axes.plot([], [], color=colour, linewidth=1.8)[0]
        self.point = axes.plot([], [], "o", color=colour, markersize=5)[0]

    def move(self, t: float) -> None:
        """Draw the line up to the time t."""
        scaled = between(self.values.log() if self.logarithmic else self.values, self.times, t)
        now, past = float(scaled.exp() if self.logarithmic else scaled), bisect_left(self.times, t)
        self.line.set_data([*self.times[:past], t], [*self.values[:past].tolist(), now])
        self.point.set_data([t], [now])


def plot_belief(axes: Axes, story: FrameData) -> list[Trace]:
    """The probabilities of the answer and of its closest rivals."""
    classes, shares = story.likeliest(len(LEADERS)), 100 * story.probabilities
    traces = [Trace(axes, story.times, shares[:, k], colour) for k, colour in zip(classes, LEADERS, strict=False)]
    axes.set(ylim=(-4, 104), yticks=[0, 50, 100])
    names = unique_labels(short(story.label(number), 16) for number in classes)
    above: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (-0.02, 1.0), "ncols": len(names)}
    tight: dict[str, Any] = {"fontsize": 8, "handlelength": 1, "columnspacing": 1, "borderpad": 0.1}
    axes.legend([trace.line for trace in traces], names, frameon=False, **above, **tight)
    _label(axes, story, "probability (%)")
    return traces


def plot_speed(axes: Axes, story: FrameData) -> Trace:
    """|dx/dt| / |x|, with what is still to come in grey."""
    speed = story.speed.clamp_min(1e-9)  # a model may come to rest exactly, and zero has no logarithm
    axes.semilogy(story.middles, speed, color="0.85", linewidth=1.2)
    # Whole powers of ten, so that the axis has a label at either end.
    low, high = math.floor(math.log10(float(speed.min()))), math.ceil(math.log10(float(speed.max())))
    axes.set_ylim(10.0**low, 10.0 ** max(high, low + 1))
    axes.yaxis.set_minor_formatter(NullFormatter())
    beside: dict[str, Any] = {"xytext": (4, 0), "textcoords": "offset points", "va": "top"}
    axes.annotate("horizon", (story.horizon, 0.98), xycoords=("data", "axes fraction"), **beside, **QUIET)
    _label(axes, story, "|dx/dt| / |x|")
    return Trace(axes, story.middles, speed, "0.2")


def _label(axes: Axes, story: FrameData, quantity: str) -> None:
    """A quantity over the times of the story, with a line at the horizon."""
    axes.set_xlim(0, story.times[-1] * 1.02)
    axes.set_xlabel("integration time t", **TEXT)
    axes.set_ylabel(quantity, **TEXT)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.axvline(story.horizon, color="0.55", linestyle=":", linewidth=1.2)


def answer(story: FrameData, t: float) -> str:
    """The likeliest class at time t, and how likely it is."""
    label, share = story.answer(t)
    return f"{short(label, 20)}: {share:.0%}"


def enlarged(picture: Image.Image) -> Image.Image:
    """The picture at about `SIDE` pixels: small ones grow by a whole factor, so that pixels stay square."""
    if (factor := SIDE // max(picture.size)) < 1:
        return ImageOps.contain(picture, (SIDE, SIDE), Image.Resampling.LANCZOS)
    return ImageOps.scale(picture, factor, Image.Resampling.NEAREST)


def show_picture(axes: Axes, picture: Image.Image, **options: Any) -> Any:
    """Draw a picture, from 0 to its width and height, and nothing around it."""
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    return axes.imshow(picture, interpolation="nearest", extent=(0, picture.width, picture.height, 0), **options)


def short(text: str, length: int) -> str:
    """The text, cut off with an ellipsis where it would not fit."""
    return text if len(text) <= length else text[: length - 1] + "…"
