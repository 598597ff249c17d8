"""Lyapunov exponents: of all images, by class, and the first few of a handful."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from odevit.report.figures.style import BLUE, GREY, ORANGE, finish, make_figure, numbers_of, signed

NAMED = 20
"""With more classes than this only the extreme ones are named."""


def draw_exponents(path: Mapping[str, Any], rest: Mapping[str, Any]) -> Figure:
    """Histograms of the largest exponent along the path and at rest."""
    figure, (axes,) = make_figure(3.6)
    groups = [(numbers_of(each["values"]), name, colour) for each, name, colour in (
        (path, "along the path", BLUE), (rest, "at rest", ORANGE))]  # fmt: skip
    finite = [value for values, _, _ in groups for value in values if np.isfinite(value)]
    if finite:
        edges = np.linspace(min(*finite, 0.0), max(*finite, 0.0), 50)
        for values, name, colour in groups:
            kept = [value for value in values if np.isfinite(value)]
            axes.hist(kept, bins=list(edges), color=colour, alpha=0.65, label=f"{name} ({len(kept):,} images)")
    axes.axvline(0.0, color="black", linewidth=1.2)
    axes.annotate(
        "grows →", (0.0, 0.9), xytext=(4, 0), textcoords="offset points", xycoords=("data", "axes fraction"), fontsize=9
    )
    axes.annotate(
        "← dies out", (0.0, 0.9), xytext=(-4, 0), textcoords="offset points", xycoords=("data", "axes fraction"),
        fontsize=9, ha="right",
    )  # fmt: skip
    axes.set(xlabel="largest Lyapunov exponent λ (1 / unit of time)", ylabel="images")
    axes.grid(alpha=0.3, axis="y")
    axes.set_ylim(top=1.3 * axes.get_ylim()[1])
    if finite:
        axes.legend(frameon=False, loc="upper left", ncols=2)
    return finish(
        figure,
        f"Negative for {100 * path['negative']['value']:.1f}% along the path, "
        f"{100 * rest['negative']['value']:.1f}% at rest",
    )


def draw_classes(by_class: Mapping[str, Any]) -> Figure:
    """Mean exponent against accuracy, a bubble a class (the paper's Fig. 5)."""
    figure, (axes,) = make_figure(4.4)
    rows = [row for row in by_class["classes"] if row["exponent"] is not None]
    largest = max(row["count"] for row in rows)
    many = len(rows) > NAMED
    accuracies = [100 * row["accuracy"] for row in rows]
    exponents = [row["exponent"] for row in rows]
    if not many:
        axes.errorbar(
            accuracies,
            exponents,
            xerr=[100 * row["accuracy_error"] for row in rows],
            yerr=[row["error"] or 0.0 for row in rows],
            linestyle="",
            color="0.7",
            linewidth=1,
            zorder=1,
        )
    sizes = [(60 if many else 160) * row["count"] / largest for row in rows]
    bubbles = axes.scatter(
        accuracies, exponents, sizes, c=accuracies, cmap="cividis", edgecolor="black", linewidth=0.5, zorder=2
    )
    figure.colorbar(bubbles, ax=axes, label="accuracy of the class (%)")
    axes.margins(0.12)
    _label(axes, [(row["class"], 100 * row["accuracy"], row["exponent"]) for row in _named(rows, many)])
    axes.set(xlabel="accuracy of the class (%)", ylabel="mean exponent along the path (1 / unit of time)")
    axes.grid(alpha=0.3)
    found = by_class["correlation"]
    said = "too few classes for a correlation" if found is None else f"r = {signed(found['r'])}, p = {found['p']:.2g}"
    return finish(figure, f"Exponent and accuracy of {len(rows)} classes: {said}")


def draw_spectrum(spectrum: Mapping[str, Any]) -> Figure:
    """The leading exponents of a handful of images, a line each."""
    figure, columns = make_figure(3.2, 2, sharey=True)
    for axes, (key, name, colour) in zip(
        columns, (("path", "along the path", BLUE), ("rest", "at rest", ORANGE)), strict=True
    ):
        numbers = range(1, spectrum["k"] + 1)
        for values, converged in zip(spectrum[key]["values"], spectrum[key]["converged"], strict=True):
            axes.plot(
                numbers,
                numbers_of(values),
                color=colour,
                marker="o",
                markersize=5,
                linewidth=1,
                alpha=0.8,
                markerfacecolor=colour if converged else "white",
            )
        axes.axhline(0.0, color="black", linewidth=1)
        axes.set(title=name, xlabel="number of the exponent", xticks=list(numbers))
        axes.title.set_color(GREY)
        axes.grid(alpha=0.3)
    columns[0].set_ylabel("λ (1 / unit of time)")
    return finish(
        figure, f"The {spectrum['k']} leading exponents of {spectrum['images']} images (hollow: not converged)"
    )


def _label(axes: Any, points: list[tuple[str, float, float]]) -> None:
    """Names beside points, each in the first of eight places that no point and no earlier name has taken."""
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    width, height = 410.0, 250.0  # of the axes, in points, nearly
    spots = [
        (name, x, y, width * (x - left) / (right - left), height * (y - bottom) / (top - bottom))
        for name, x, y in sorted(points, key=lambda point: -point[2])
    ]
    taken = [(across - 6, across + 6, up - 3) for _, _, _, across, up in spots]
    for name, x, y, across, up in spots:
        long = 5.0 * len(name)
        places = [(sign * 8.0, shift) for shift in (4.0, -11.0, 16.0, -23.0) for sign in (1, -1)]

        def free(place: tuple[float, float], across: float = across, up: float = up, long: float = long) -> bool:
            start = across + place[0] - (long if place[0] < 0 else 0.0)
            level = up + place[1]
            return all(abs(level - v) > 10 or start > b or start + long < a for a, b, v in taken) and start > 0

        right_or_left, shift = next(filter(free, places), places[0])
        start = across + right_or_left - (long if right_or_left < 0 else 0.0)
        taken.append((start, start + long, up + shift))
        axes.annotate(
            name, (x, y), xytext=(right_or_left, shift), textcoords="offset points", fontsize=9, zorder=3,
            ha="left" if right_or_left > 0 else "right",
        )  # fmt: skip


def _named(rows: list[Mapping[str, Any]], many: bool) -> list[Mapping[str, Any]]:
    """All classes, or of many the three at each end of either axis."""
    if not many:
        return rows
    ends: dict[str, Mapping[str, Any]] = {}
    for key in ("accuracy", "exponent"):
        ordered = sorted(rows, key=lambda row: row[key])
        ends |= {row["class"]: row for row in [*ordered[:3], *ordered[-3:]]}
    return list(ends.values())
