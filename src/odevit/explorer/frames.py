"""Trace, t -> frame: the image, the attention over it, the class probabilities and the speed of the state."""

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

from odevit.explorer.traces import DISPLAY_SIDE, Trace, interpolate
from odevit.objectives.attention_matching import mass_threshold
from odevit.plotting import COLOURS, mask_outline, unique_labels

TEXT: dict[str, Any] = {"fontsize": 9}
SMALL_GREY: dict[str, Any] = {"fontsize": 8, "color": "0.4"}
CLASS_COLOURS = COLOURS[:3]
"""One colour for each class whose probability is drawn."""
LAYOUT: list[Any] = [["image", "model", "probabilities"], ["image", "model", "speed"]]
LAYOUT_WITH_TEACHER: list[Any] = [["image", "model", "teacher"], ["probabilities", "probabilities", "speed"]]


class Frames:
    """The frames of a film, 800 pixels wide: laid out once, then updated for each time."""

    def __init__(self, trace: Trace, mass: float) -> None:
        self.trace, image, alone = trace, resize_for_display(trace.image), trace.teacher is None
        self.figure = Figure(figsize=(8.0, 3.2 if alone else 4.8), dpi=100, layout="constrained")
        widths, heights = [1, 1, 1.25 if alone else 1], [1.2 if alone else 1.7, 1]
        layout = LAYOUT if alone else LAYOUT_WITH_TEACHER
        axes = self.figure.subplot_mosaic(layout, width_ratios=widths, height_ratios=heights)
        show_image(axes["image"], image)
        width, height = trace.input_size
        axes["image"].set_title(f"{truncate(trace.name, 14)}, input {width} × {height}", **TEXT)
        self.prediction = axes["image"].set_xlabel("", fontsize=10)
        self.model = Overlay(axes["model"], image, trace.mean_attention, mass)
        self.model.add_scale()
        axes["model"].set_xlabel("\n".join(overlay_captions(trace, mass)), **SMALL_GREY)
        if trace.teacher is not None:
            self.teacher = Overlay(axes["teacher"], image, trace.teacher.attention, mass)
            self.teacher.add_scale()
        self.lines = [*plot_probabilities(axes["probabilities"], trace), plot_speed(axes["speed"], trace)]
        if alone:  # the two plots share one time axis
            axes["probabilities"].tick_params(labelbottom=False)
            axes["probabilities"].set_xlabel("")
        # The layout is computed once and kept, so that panels do not shift between frames.
        self.draw(trace.horizon)
        self.figure.set_layout_engine("none")

    def draw(self, t: float) -> Image.Image:
        """The frame at time t."""
        trace, teacher = self.trace, self.trace.teacher
        self.prediction.set_text(prediction_text(trace, t))
        self.model.show(interpolate(trace.mean_attention, trace.times, t))
        self.model.axes.set_title(f"attention at t = {t:.2f}", **TEXT)
        if teacher is not None:
            layer = teacher.layer_at(t)
            self.teacher.show(teacher.attention[layer])
            self.teacher.axes.set_title(f"teacher, layer {layer + 1} of {len(teacher.attention)}", **TEXT)
        for line in self.lines:
            line.draw_until(t)
        canvas = FigureCanvasAgg(self.figure)
        canvas.draw()
        return Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")


def draw_strip(trace: Trace, times: Sequence[float], mass: float) -> Figure:
    """The image, then the attention and the prediction at some times; the teacher's layers in a second row."""
    image, teacher = resize_for_display(trace.image), trace.teacher
    rows = 1 if teacher is None else 2
    figure = Figure(figsize=(1.7 * (len(times) + 1) + 0.5, 2.1 * rows + 0.2), dpi=120, layout="constrained")
    grid = figure.subplots(rows, len(times) + 1, squeeze=False)
    show_image(grid[0, 0], image)
    grid[0, 0].set_xlabel(truncate(trace.name, 18), **TEXT)
    for column, t in enumerate(times, start=1):
        overlay = Overlay(grid[0, column], image, trace.mean_attention, mass)
        overlay.show(interpolate(trace.mean_attention, trace.times, t))
        note = " (horizon)" if t == trace.horizon else ""
        grid[0, column].set_xlabel(f"t = {t:.4g}{note}\n{prediction_text(trace, t)}", **TEXT)
        if teacher is not None:
            layer = teacher.layer_at(t)
            layer_overlay = Overlay(grid[1, column], image, teacher.attention, mass)
            layer_overlay.show(teacher.attention[layer])
            grid[1, column].set_xlabel(f"teacher, layer {layer + 1}", **TEXT)
    overlay.add_scale(grid[0])
    if teacher is not None:
        grid[1, 0].set_axis_off()
        layer_overlay.add_scale(grid[1])
    figure.supxlabel("; ".join(overlay_captions(trace, mass)), **SMALL_GREY)
    return figure


def overlay_captions(trace: Trace, mass: float) -> tuple[str, str]:
    """What the colours and the outline of an overlay mean."""
    return f"query: {trace.query}", f"outlined: {mass:.0%} of the attention"


class Overlay:
    """The image in grey, the attention over it in colour, and an outline around the patches that hold `mass` of it.

    `maps` are all maps that will be shown [..., row, column]; they fix the colour scale for every frame.
    """

    def __init__(self, axes: Axes, image: Image.Image, maps: Tensor, mass: float) -> None:
        self.axes, self.mass, self.size = axes, mass, image.size
        # Reduced contrast, so that the attention over it is seen better than the image.
        extent = show_image(axes, image.convert("L"), cmap="gray", vmin=-100, vmax=355).get_extent()
        blank, low, high = np.zeros(maps.shape[-2:]), 100 * float(maps.min()), 100 * float(maps.max())
        style: dict[str, Any] = {"cmap": "inferno", "alpha": 0.7, "interpolation": "bilinear"}
        self.heatmap = axes.imshow(blank, vmin=low, vmax=high, extent=extent, **style)
        self.outline = LineCollection([], colors="white", linewidths=1.2)
        axes.add_collection(self.outline)

    def add_scale(self, beside: Any = None) -> None:
        """Add a colour bar, beside these axes or others."""
        place: dict[str, Any] = {"ax": self.axes if beside is None else beside, "shrink": 0.7, "pad": 0.02}
        scale = self.axes.figure.colorbar(self.heatmap, **place, aspect=18, ticks=MaxNLocator(4))
        scale.ax.set_facecolor("0.5")  # half transparent over grey, as on the image
        scale.ax.tick_params(labelsize=7, length=2)
        scale.set_label("% per patch", **SMALL_GREY)
        scale.outline.set_visible(False)

    def show(self, attention: Tensor) -> None:
        """Show one map [row, column]."""
        self.heatmap.set_data(100 * attention.numpy())
        inside = mass_threshold(attention.flatten(), self.mass).view_as(attention)
        self.outline.set_segments(mask_outline(inside, *self.size))


class GrowingLine:
    """A line up to time t with a point at its end; interpolates logarithms on a logarithmic axis."""

    def __init__(self, axes: Axes, times: tuple[float, ...], values: Tensor, colour: str) -> None:
        self.times, self.values, self.logarithmic = times, values, axes.get_yscale() == "log"
        self.line = axes.plot([], [], color=colour, linewidth=1.8)[0]
        self.point = axes.plot([], [], "o", color=colour, markersize=5)[0]

    def draw_until(self, t: float) -> None:
        """Draw the line up to time t."""
        scaled = interpolate(self.values.log() if self.logarithmic else self.values, self.times, t)
        value, count = float(scaled.exp() if self.logarithmic else scaled), bisect_left(self.times, t)
        self.line.set_data([*self.times[:count], t], [*self.values[:count].tolist(), value])
        self.point.set_data([t], [value])


def plot_probabilities(axes: Axes, trace: Trace) -> list[GrowingLine]:
    """The probabilities of the predicted class and of its closest rivals."""
    classes, percent = trace.top_classes(len(CLASS_COLOURS)), 100 * trace.probabilities
    colours = zip(classes, CLASS_COLOURS, strict=False)
    lines = [GrowingLine(axes, trace.times, percent[:, number], colour) for number, colour in colours]
    axes.set(ylim=(-4, 104), yticks=[0, 50, 100])
    names = unique_labels(truncate(trace.label(number), 16) for number in classes)
    above: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (-0.02, 1.0), "ncols": len(names)}
    tight: dict[str, Any] = {"fontsize": 8, "handlelength": 1, "columnspacing": 1, "borderpad": 0.1}
    axes.legend([line.line for line in lines], names, frameon=False, **above, **tight)
    _format_axes(axes, trace, "probability (%)")
    return lines


def plot_speed(axes: Axes, trace: Trace) -> GrowingLine:
    """|dx/dt| / |x|; the future part in grey."""
    speed = trace.speed.clamp_min(1e-9)  # zero, where the state has converged exactly, has no logarithm
    axes.semilogy(trace.midpoints, speed, color="0.85", linewidth=1.2)
    # Whole powers of ten, so that the axis has a label at both ends.
    low, high = math.floor(math.log10(float(speed.min()))), math.ceil(math.log10(float(speed.max())))
    axes.set_ylim(10.0**low, 10.0 ** max(high, low + 1))
    axes.yaxis.set_minor_formatter(NullFormatter())
    beside: dict[str, Any] = {"xytext": (4, 0), "textcoords": "offset points", "va": "top"}
    axes.annotate("horizon", (trace.horizon, 0.98), xycoords=("data", "axes fraction"), **beside, **SMALL_GREY)
    _format_axes(axes, trace, "|dx/dt| / |x|")
    return GrowingLine(axes, trace.midpoints, speed, "0.2")


def _format_axes(axes: Axes, trace: Trace, quantity: str) -> None:
    axes.set_xlim(0, trace.times[-1] * 1.02)
    axes.set_xlabel("integration time t", **TEXT)
    axes.set_ylabel(quantity, **TEXT)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.axvline(trace.horizon, color="0.55", linestyle=":", linewidth=1.2)


def prediction_text(trace: Trace, t: float) -> str:
    """The most likely class at time t and its probability, such as "frog: 93%"."""
    label, probability = trace.prediction_at(t)
    return f"{truncate(label, 20)}: {probability:.0%}"


def resize_for_display(image: Image.Image) -> Image.Image:
    """The image at about `DISPLAY_SIDE` pixels; small ones grow by a whole factor, which keeps pixels square."""
    if (factor := DISPLAY_SIDE // max(image.size)) < 1:
        return ImageOps.contain(image, (DISPLAY_SIDE, DISPLAY_SIDE), Image.Resampling.LANCZOS)
    return ImageOps.scale(image, factor, Image.Resampling.NEAREST)


def show_image(axes: Axes, image: Image.Image, **options: Any) -> Any:
    """Draw an image in pixel coordinates, without ticks or frame."""
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    return axes.imshow(image, interpolation="nearest", extent=(0, image.width, image.height, 0), **options)


def truncate(text: str, length: int) -> str:
    """At most `length` characters of a text, with an ellipsis where something is cut off."""
    return text if len(text) <= length else text[: length - 1] + "…"
