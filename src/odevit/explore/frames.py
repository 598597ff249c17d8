"""Story, t -> picture: the image, what is looked at, what is believed, how fast it still moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from odevit.explore.overlay import QUIET, TEXT, Overlay, bare, enlarged, short
from odevit.explore.plots import plot_belief, plot_speed
from odevit.explore.story import Story, between

ALONE: list[Any] = [["image", "student", "belief"], ["image", "student", "speed"]]
BESIDE_A_TEACHER: list[Any] = [["image", "student", "teacher"], ["belief", "belief", "speed"]]


class Frames:
    """The pictures of a film, 800 pixels wide: laid out once, then moved in time.

    Args:
        story: what to show.
        mass: share of the attention that is outlined.
    """

    def __init__(self, story: Story, mass: float) -> None:
        self.story, picture = story, enlarged(story.picture)
        alone = story.layers is None
        self.figure = Figure(figsize=(8.0, 3.2 if alone else 4.8), dpi=100, layout="constrained")
        self.canvas = FigureCanvasAgg(self.figure)
        axes = self.figure.subplot_mosaic(
            ALONE if alone else BESIDE_A_TEACHER,
            width_ratios=[1, 1, 1.25 if alone else 1],
            height_ratios=[1.2 if alone else 1.7, 1],
        )
        axes["image"].imshow(picture, interpolation="nearest")
        axes["image"].set_title(f"{short(story.name, 14)}, seen at {story.seen[0]} × {story.seen[1]}", **TEXT)
        self.answer = axes["image"].xaxis.label
        self.answer.set_fontsize(10)
        bare(axes["image"])

        self.student = Overlay(axes["student"], picture, story.attention, mass)
        self.student.add_colour_bar()
        axes["student"].set_xlabel(f"query: {story.query}\noutlined: {mass:.0%} of the attention", **QUIET)
        self.teacher = None
        if story.layers is not None:
            self.teacher = Overlay(axes["teacher"], picture, story.layers.attention, mass)
            self.teacher.add_colour_bar()
        self.traces = [*plot_belief(axes["belief"], story), plot_speed(axes["speed"], story)]
        if alone:  # the axis of the plot below is its own
            axes["belief"].tick_params(labelbottom=False)
            axes["belief"].set_xlabel("")
        # The layout is found once and kept: nothing moves but what should.
        self.draw(story.horizon)
        self.figure.set_layout_engine("none")

    def draw(self, t: float) -> Image.Image:
        """The frame of the time t."""
        story = self.story
        self.answer.set_text(_words(*story.answer(t)))
        self.student.show(between(story.attention, story.times, t))
        self.student.axes.set_title(f"attention at t = {t:.2f}", **TEXT)
        if self.teacher is not None and story.layers is not None:
            number = story.layers.at(t)
            self.teacher.show(story.layers.attention[number])
            self.teacher.axes.set_title(f"teacher, layer {number + 1} of {len(story.layers.starts)}", **TEXT)
        for trace in self.traces:
            trace.move(t)
        return _painted(self.canvas)


def draw_strip(story: Story, times: Sequence[float], mass: float) -> Image.Image:
    """The image, then what is looked at at some times, with the answers; the teacher's layers in a second row."""
    picture, rows = enlarged(story.picture), 1 if story.layers is None else 2
    figure = Figure(figsize=(1.7 * (len(times) + 1), 2.1 * rows), dpi=120, layout="constrained")
    grid = figure.subplots(rows, len(times) + 1, squeeze=False)
    grid[0, 0].imshow(picture, interpolation="nearest")
    grid[0, 0].set_xlabel(short(story.name, 18), **TEXT)
    bare(grid[0, 0])
    for axes, t in zip(grid[0, 1:], times, strict=True):
        Overlay(axes, picture, story.attention, mass).show(between(story.attention, story.times, t))
        where = " (horizon)" if t == story.horizon else ""
        axes.set_xlabel(f"t = {t:.4g}{where}\n{_words(*story.answer(t))}", **TEXT)
    if story.layers is not None:
        grid[1, 0].axis("off")
        for axes, t in zip(grid[1, 1:], times, strict=True):
            number = story.layers.at(t)
            Overlay(axes, picture, story.layers.attention, mass).show(story.layers.attention[number])
            axes.set_xlabel(f"teacher, layer {number + 1}", **TEXT)
    return _painted(FigureCanvasAgg(figure))


def _words(label: str, share: float) -> str:
    return f"{short(label, 20)}: {share:.0%}"


def _painted(canvas: FigureCanvasAgg) -> Image.Image:
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
