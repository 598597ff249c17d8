"""How steep the field is, and how far the answer is from another one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from odevit.report.figures.style import BLUE, GREEN, ORANGE, finish, make_figure, numbers_of


def draw_lipschitz(lipschitz: Mapping[str, Any]) -> Figure:
    """Local Lipschitz constants along the path: the field, attention alone, and the bound of it."""
    figure, (axes,) = make_figure(3.4)
    rows = lipschitz["rows"]
    times = [row["time"] for row in rows]
    shown = (
        ("field", "whole field, measured", BLUE, "-"),
        ("attention", "attention alone, measured", GREEN, "-"),
        ("attention_bound", "attention alone, bound from its map", ORANGE, "--"),
    )
    for key, name, colour, style in shown:
        if key not in rows[0]:
            continue
        low, middle, high = (numbers_of([row[key][end] for row in rows]) for end in ("smallest", "median", "largest"))
        axes.fill_between(times, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.plot(times, middle, color=colour, linestyle=style, marker="o", markersize=5, label=name)
    axes.set(xlabel="time t", ylabel="|df/dx| (1 / unit of time)", ylim=(0, None))
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    middle = numbers_of([row["field"]["median"] for row in rows])
    return finish(figure, f"Lipschitz constant along the path: {min(middle):.1f} to {max(middle):.1f} in the median")


def draw_radius(radius: Mapping[str, Any]) -> Figure:
    """The distance to another answer against the margin of the head."""
    figure, (axes,) = make_figure(3.8)
    values = 100 * np.array(numbers_of(radius["relative"]))
    margins, right = np.array(numbers_of(radius["margin"])), np.array(radius["right"], bool)
    for among, name, colour, marker in ((right, "answered rightly", BLUE, "o"), (~right, "wrongly", ORANGE, "X")):
        axes.scatter(
            margins[among], values[among], s=34, color=colour, marker=marker, alpha=0.8, linewidth=0, label=name
        )
    axes.set(
        xlabel="margin of the head, p₁ − p₂",
        ylabel="shortest way to another answer\n(% of the norm of the state)",
        ylim=(0, None),
    )
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, loc="upper left")
    middle = radius["quantiles"]["50%"]
    said = "no disturbance changed an answer" if middle is None else f"{100 * middle:.2g}% of the norm in the median"
    return finish(figure, f"Contraction radius at the horizon: {said} ({radius['images']} images)")
