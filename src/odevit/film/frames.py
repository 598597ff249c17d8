"""Story, t -> picture: the image, what the model looks at, what it believes, how fast it still moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from odevit.film.panels import QUIET, TEXT, Overlay, bare, plot_belief, plot_speed, short
from odevit.film.story import Story, between

ALONE: list[Any] = [["image", "model", "belief"], ["image", "model", "speed"]]
BESIDE_A_TEACHER: list[Any] = [["image", "model", "teacher"], ["belief", "belief", "speed"]]
SIDE = 256
"""Pixels, roughly, along the longer side of the image in a panel."""


class Frames:
    """The pictures of a film, 800 pixels wide: laid out once, then moved through time.

    Args:
        story: what to show.
        mass: share of the attention that is outlined.
    """

    def __init__(self, story: Story, mass: float) -> None:
        self.story, picture = story, enlarged(story.picture)
        alone = story.layers is None
        self.figure = Figure(figsize=(8.0, 3.2 if alone else 4.8), dpi=100, layout="constrained")
        axes = self.figure.subplot_mosaic(
            ALONE if alone else BESIDE_A_TEACHER,
            width_ratios=[1, 1, 1.25 if alone else 1],
            height_ratios=[1.2 if alone else 1.7, 1],
        )
        axes["image"].imshow(picture, interpolation="nearest")
        axes["image"].set_title(f"{short(story.name, 14)}, seen at {story.seen[0]} × {story.seen[1]}", **TEXT)
        self.answer = axes["image"].set_xlabel("", fontsize=10)
        bare(axes["image"])

        self.model = Overlay(axes["model"], picture, story.attention, mass)
        self.model.add_colour_bar()
        axes["model"].set_xlabel(f"query: {story.query}\noutlined: {mass:.0%} of the attention", **QUIET)
        if story.layers is not None:
            self.teacher = Overlay(axes["teacher"], picture, story.layers.attention, mass)
            self.teacher.add_colour_bar()
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
        self.answer.set_text(_answer(story, t))
        self.model.show(between(story.attention, story.times, t))
        self.model.axes.set_title(f"attention at t = {t:.2f}", **TEXT)
        if story.layers is not None:
            number = story.layers.at(t)
            self.teacher.show(story.layers.attention[number])
            self.teacher.axes.set_title(f"teacher, layer {number + 1} of {len(story.layers.starts)}", **TEXT)
        for trace in self.traces:
            trace.move(t)
        return render(self.figure)


def draw_strip(story: Story, times: Sequence[float], mass: float) -> Figure:
    """The image, then the attention and the answer at some times; the teacher's layers in a second row."""
    picture, layers = enlarged(story.picture), story.layers
    rows = 1 if layers is None else 2
    figure = Figure(figsize=(1.7 * (len(times) + 1), 2.1 * rows), dpi=120, layout="constrained")
    grid = figure.subplots(rows, len(times) + 1, squeeze=False)
    grid[0, 0].imshow(picture, interpolation="nearest")
    grid[0, 0].set_xlabel(short(story.name, 18), **TEXT)
    bare(grid[0, 0])
    grid[-1, 0].set_axis_off() if layers is not None else None
    for column, t in enumerate(times, start=1):
        Overlay(grid[0, column], picture, story.attention, mass).show(between(story.attention, story.times, t))
        where = " (horizon)" if t == story.horizon else ""
        grid[0, column].set_xlabel(f"t = {t:.4g}{where}\n{_answer(story, t)}", **TEXT)
        if layers is not None:
            Overlay(grid[1, column], picture, layers.attention, mass).show(layers.attention[layers.at(t)])
            grid[1, column].set_xlabel(f"teacher, layer {layers.at(t) + 1}", **TEXT)
    return figure


def enlarged(picture: Image.Image) -> Image.Image:
    """The picture at about `SIDE` pixels: small ones grow by a whole factor, so that pixels stay square."""
    factor = SIDE // max(picture.size)
    if factor >= 1:
        return picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST)
    small = picture.copy()
    small.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    return small


def render(figure: Figure) -> Image.Image:
    """The figure as pixels."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")


def _answer(story: Story, t: float) -> str:
    label, share = story.answer(t)
    return f"{short(label, 20)}: {share:.0%}"
