"""probability and speed against t, drawn up to now."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, NullFormatter
from torch import Tensor

from odevit.explore.overlay import QUIET, TEXT, short
from odevit.explore.story import Story, between

COLOURS = ("#0072B2", "#D55E00", "#009E73")
"""Okabe and Ito: told apart by colour-blind readers too."""


class Trace:
    """A line up to now, and a point where it is.

    Args:
        axes: where to draw.
        times, values: all of them.
        colour: of the line.
        logarithmic: whether it is straight between its points on a logarithmic axis.
    """

    def __init__(
        self, axes: Axes, times: tuple[float, ...], values: Tensor, colour: str, logarithmic: bool = False
    ) -> None:
        self.times, self.values, self.logarithmic = times, values, logarithmic
        self.line = axes.plot([], [], color=colour, linewidth=1.8)[0]
        self.point = axes.plot([], [], "o", color=colour, markersize=5)[0]

    def move(self, t: float) -> None:
        """Draw it up to the time t."""
        now = float(
            between(self.values.log(), self.times, t).exp() if self.logarithmic else between(self.values, self.times, t)
        )
        past = [n for n, time in enumerate(self.times) if time < t]
        self.line.set_data([*(self.times[n] for n in past), t], [*self.values[past].tolist(), now])
        self.point.set_data([t], [now])


def plot_belief(axes: Axes, story: Story) -> list[Trace]:
    """The probabilities of the answer and of what came nearest to being it."""
    chosen = story.likeliest(len(COLOURS))
    traces = [
        Trace(axes, story.times, 100 * story.probabilities[:, number], colour)
        for number, colour in zip(chosen, COLOURS, strict=False)
    ]
    axes.set(ylim=(-4, 104), yticks=[0, 50, 100])
    axes.set_ylabel("probability (%)", **TEXT)
    axes.legend(
        [trace.line for trace in traces],
        [short(story.label(number), 16) for number in chosen],
        ncols=len(chosen),
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
    """|dx/dt| / |x|, in grey where it is going to be."""
    speed = story.speed.clamp_min(1e-9)  # a model may rest exactly, a logarithm may not
    axes.semilogy(story.middles, speed, color="0.85", linewidth=1.2)
    axes.set_ylim(*_decades(speed))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("|dx/dt| / |x|", **TEXT)
    axes.annotate(
        "horizon",
        (story.horizon, 0.98),
        xycoords=("data", "axes fraction"),
        xytext=(4, 0),
        textcoords="offset points",
        va="top",
        **QUIET,
    )
    _time_axis(axes, story)
    return Trace(axes, story.middles, speed, "0.2", logarithmic=True)


def _time_axis(axes: Axes, story: Story) -> None:
    axes.set_xlim(0, story.times[-1] * 1.02)
    axes.set_xlabel("integration time t", **TEXT)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.axvline(story.horizon, color="0.55", linestyle=":", linewidth=1.2)


def _decades(values: Tensor) -> tuple[float, float]:
    """The powers of ten around all values: an axis between them has a label at either end."""
    low, high = math.floor(math.log10(float(values.min()))), math.ceil(math.log10(float(values.max())))
    return 10.0**low, 10.0 ** max(high, low + 1)
