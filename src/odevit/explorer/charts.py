"""Journey, Growth, Parting -> figures: belief over time, the path in its plane, two paths and their distance."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure

from odevit.analysis.lyapunov import Growth
from odevit.analysis.perturbation import Divergence
from odevit.analysis.plane import Plane
from odevit.explorer.traces import Journey
from odevit.plotting import BLUE, COLOURS, GREY, ORANGE, finish_figure, make_figure, unique_labels

CURVES = 5
"""Classes whose probabilities are drawn."""
MEETING_AND_PARTING = LinearSegmentedColormap.from_list("meeting and parting", [BLUE, "#bbbbbb", ORANGE])


def draw_beliefs(journey: Journey) -> Figure:
    """p_k(t), the probabilities of the answer and of its closest rivals along the way."""
    story, (figure, (axes,)) = journey.story, make_figure(3.2)
    classes = story.likeliest(CURVES)
    for number, name, colour in zip(classes, unique_labels(map(story.label, classes)), COLOURS, strict=False):
        axes.plot(story.times, 100 * story.probabilities[:, number], color=colour, label=name)
    axes.axvline(story.horizon, color=GREY, linestyle=":")
    axes.set(
        xlabel="integration time t" if journey.solver_config else "layer", ylabel="probability (%)", ylim=(-2, 102)
    )
    axes.legend(frameon=False)
    return finish_figure(figure, f"What the head says of {story.name}")


def draw_path(journey: Journey, growth: Growth | None = None) -> Figure:
    """What the head reads of x(t), in the plane in which it varies most; blue where paths meet, orange where they part.

    A teacher's layers are squares. Without a growth, and beyond its end, the path is grey.
    """
    plane, (figure, (axes,)) = plane_of(journey), make_figure(4.4)
    points = plane.points(journey.read).numpy()
    axes.plot(*points.T, color="0.7", linewidth=1.2, marker=".", markersize=4)
    if growth is not None:
        rates = rates_between(growth, journey.story.times)
        limit = max(float(np.nanmax(np.abs(rates), initial=0.0)), 1e-9)
        segments = np.stack([points[:-1], points[1:]], axis=1)[: len(rates)]
        style: dict[str, Any] = {"cmap": MEETING_AND_PARTING, "norm": Normalize(-limit, limit), "linewidths": 3}
        lines = axes.add_collection(LineCollection(list(segments), array=rates, **style))
        figure.colorbar(lines, ax=axes, shrink=0.7, label="growth rate of a small change")
    if journey.layers is not None:
        axes.plot(*plane.points(journey.layers).numpy().T, "s:", color=GREY, mfc="white", label="teacher's layers")
        axes.legend(frameon=False)
    axes.plot(*points[0], "o", color="black", mfc="white", markersize=8)
    axes.plot(*points[-1], "*", color="black", markersize=11)
    first, second = (f"principal component ({share:.0%} of the variance)" for share in plane.explained)
    axes.set(xlabel=f"1st {first}", ylabel=f"2nd {second}")
    return finish_figure(figure, f"The path of {journey.story.name}, from its start (ring) to its end (star)")


def draw_parting(parting: Divergence, horizon: float) -> Figure:
    """d(t) = |x'(t) - x(t)| on a logarithmic axis, relative to |x(t)|."""
    figure, (axes,) = make_figure(3.0)
    axes.semilogy(parting.times, (parting.distance / parting.size).clamp_min(1e-12), color=ORANGE, marker=".")
    axes.axvline(horizon, color=GREY, linestyle=":")
    axes.set(xlabel="integration time t", ylabel="|x' - x| / |x|")
    return finish_figure(figure, "Two paths that begin apart in one patch")


def plane_of(journey: Journey) -> Plane:
    """The plane of a path, and of a teacher's layers where there are any."""
    return Plane.through(journey.read, *(() if journey.layers is None else (journey.layers,)))


def rates_between(growth: Growth, times: tuple[float, ...]) -> np.ndarray:
    """The growth rate in the middle of every interval between `times`, as far as it was measured."""
    middles = (np.array(times[1:]) + np.array(times[:-1])) / 2
    known = middles[middles <= growth.times[-1]]
    steps = np.searchsorted(growth.times, known, side="right") - 1
    return growth.rates[:, 0].cpu().numpy()[np.clip(steps, 0, len(growth.rates) - 1)]
