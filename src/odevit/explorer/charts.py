"""Trace, Growth, Divergence -> figures: probabilities over time, the path in a plane, the distance of two paths."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure

from odevit.analysis.lyapunov import Growth
from odevit.analysis.perturbation import Divergence
from odevit.analysis.plane import Plane
from odevit.explorer.traces import Trace
from odevit.plotting import BLUE, COLOURS, GREY, ORANGE, finish_figure, make_figure, unique_labels

CURVES = 5
"""Classes whose probabilities are drawn."""
GROWTH_COLOURS = LinearSegmentedColormap.from_list("shrinking to growing", [BLUE, "#bbbbbb", ORANGE])


def draw_probabilities(trace: Trace) -> Figure:
    """p_k(t), the probabilities of the predicted class and of its closest rivals."""
    figure, (axes,) = make_figure(3.2)
    classes = trace.top_classes(CURVES)
    for number, name, colour in zip(classes, unique_labels(map(trace.label, classes)), COLOURS, strict=False):
        axes.plot(trace.times, 100 * trace.probabilities[:, number], color=colour, label=name)
    axes.axvline(trace.horizon, color=GREY, linestyle=":")
    time = "integration time t" if trace.solver_config else "layer"
    axes.set(xlabel=time, ylabel="probability (%)", ylim=(-2, 102))
    axes.legend(frameon=False)
    return finish_figure(figure, f"Class probabilities of {trace.name}")


def draw_path(trace: Trace, growth: Growth | None = None) -> Figure:
    """What the head reads of x(t), in the plane of its two principal components.

    Blue where a small change of the state shrinks, orange where it grows, grey where that was not measured. A
    teacher's layers are squares.
    """
    plane, (figure, (axes,)) = principal_plane(trace), make_figure(4.4)
    points = plane.points(trace.readout).numpy()
    axes.plot(*points.T, color="0.7", linewidth=1.2, marker=".", markersize=4)
    if growth is not None:
        rates = growth_rates(growth, trace.times)
        limit = max(float(np.nanmax(np.abs(rates), initial=0.0)), 1e-9)
        segments = np.stack([points[:-1], points[1:]], axis=1)[: len(rates)]
        style: dict[str, Any] = {"cmap": GROWTH_COLOURS, "norm": Normalize(-limit, limit), "linewidths": 3}
        lines = axes.add_collection(LineCollection(list(segments), array=rates, **style))
        figure.colorbar(lines, ax=axes, shrink=0.7, label="growth rate of a small change")
    if trace.teacher is not None:
        layers = plane.points(trace.teacher.readout).numpy()
        axes.plot(*layers.T, "s:", color=GREY, mfc="white", label="teacher's layers")
        axes.legend(frameon=False)
    axes.plot(*points[0], "o", color="black", mfc="white", markersize=8)
    axes.plot(*points[-1], "*", color="black", markersize=11)
    first, second = (f"principal component ({share:.0%} of the variance)" for share in plane.explained)
    axes.set(xlabel=f"1st {first}", ylabel=f"2nd {second}")
    return finish_figure(figure, f"The path of {trace.name}, from its start (ring) to its end (star)")


def draw_divergence(divergence: Divergence, horizon: float) -> Figure:
    """d(t) = |x'(t) - x(t)| relative to |x(t)|, on a logarithmic axis."""
    figure, (axes,) = make_figure(3.0)
    distance = (divergence.distance / divergence.size).clamp_min(1e-12)
    axes.semilogy(divergence.times, distance, color=ORANGE, marker=".")
    axes.axvline(horizon, color=GREY, linestyle=":")
    axes.set(xlabel="integration time t", ylabel="|x' - x| / |x|")
    return finish_figure(figure, "Distance of two paths that differ in one patch at the start")


def principal_plane(trace: Trace) -> Plane:
    """The principal plane of a path, and of a teacher's layers where there are any."""
    return Plane.through(trace.readout, *(() if trace.teacher is None else (trace.teacher.readout,)))


def growth_rates(growth: Growth, times: tuple[float, ...]) -> np.ndarray:
    """The growth rate in the middle of each interval between `times`, as far as it was measured."""
    middles = (np.array(times[1:]) + np.array(times[:-1])) / 2
    measured = middles[middles <= growth.times[-1]]
    steps = np.searchsorted(growth.times, measured, side="right") - 1
    return growth.rates[:, 0].cpu().numpy()[np.clip(steps, 0, len(growth.rates) - 1)]
