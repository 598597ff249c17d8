"""One style for all figures: 8 inches wide, with colours for colour-blind readers (Okabe and Ito)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PINK, YELLOW, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
COLOURS = (BLUE, ORANGE, GREEN, PINK, YELLOW, SKY)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
GREY = "0.45"


def make_figure(height: float, columns: int = 1, **options: Any) -> tuple[Figure, list[Any]]:
    """A figure and its axes from left to right; options are those of `Figure.subplots`."""
    figure = Figure(figsize=(8, height), layout="constrained", dpi=130)
    return figure, list(figure.subplots(1, columns, squeeze=False, **options)[0])


def finish_figure(figure: Figure, title: str = "") -> Figure:
    """Add a title and remove the upper and right spines."""
    if title:
        figure.suptitle(title, fontsize=12)
    for axes in figure.axes:
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def mask_outline(mask: Any, width: float, height: float) -> list[np.ndarray]:
    """The boundary of a set of patches, as line segments [[x, y], [x, y]] for a `LineCollection`.

    Args:
        mask: [row, column], true inside the set.
        width, height: size of the image that the patches cover.
    """
    padded = np.pad(np.asarray(mask, dtype=bool), 1)
    rows, columns = np.shape(mask)
    upright = np.argwhere(padded[1:-1, 1:] != padded[1:-1, :-1])
    level = np.argwhere(padded[1:, 1:-1] != padded[:-1, 1:-1])
    segments = [[(column, row), (column, row + 1)] for row, column in upright]
    segments += [[(column, row), (column + 1, row)] for row, column in level]
    return [np.array(segment) * (width / columns, height / rows) for segment in segments]


def nan_for_none(values: Iterable[float | None]) -> list[float]:
    """The values with NaN in place of None, which leaves a gap in a line."""
    return [float("nan") if value is None else value for value in values]


def unique_labels(names: Iterable[str]) -> list[str]:
    """The names, with a number after each repeated one, so that all entries of a legend differ."""
    counts: Counter[str] = Counter()
    labels = []
    for name in names:
        counts[name] += 1
        labels.append(name if counts[name] == 1 else f"{name} ({counts[name]})")
    return labels


def format_signed(value: float, digits: int = 2) -> str:
    """A number with a typographic minus sign."""
    return f"{value:.{digits}f}".replace("-", "−")
