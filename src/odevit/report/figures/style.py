"""One look for all pictures: 8 inches wide, colours that colour-blind readers can tell apart."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PINK, YELLOW, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
COLOURS = (BLUE, ORANGE, GREEN, PINK, YELLOW, SKY)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
GREY = "0.45"


def make_figure(height: float, columns: int = 1, **options: Any) -> tuple[Figure, list[Any]]:
    """A figure and its axes from left to right."""
    figure = Figure(figsize=(8, height), layout="constrained", dpi=130)
    return figure, list(figure.subplots(1, columns, squeeze=False, **options)[0])


def finish(figure: Figure, title: str) -> Figure:
    """A title and quiet axes."""
    figure.suptitle(title, fontsize=12)
    for axes in figure.axes:
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def numbers_of(values: list[float | None]) -> list[float]:
    """A list from JSON with NaN where it has null, which leaves a gap in a line."""
    return [float("nan") if value is None else value for value in values]


def signed(value: float, digits: int = 2) -> str:
    """A number with a true minus sign."""
    return f"{value:.{digits}f}".replace("-", "−")
