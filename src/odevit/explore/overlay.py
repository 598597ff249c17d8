"""image + attention -> colours over grey: what is looked at, shown where it is."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.ticker import MaxNLocator
from PIL import Image
from torch import Tensor

from odevit.analysis.attention import mass_threshold

TEXT: dict[str, Any] = {"fontsize": 9}
QUIET: dict[str, Any] = {"fontsize": 8, "color": "0.4"}

SIDE = 256
"""About as many pixels as a shown image has."""

COLOUR_MAP, OPACITY = "inferno", 0.7
FAINT: dict[str, Any] = {"cmap": "gray", "vmin": -100, "vmax": 355}
"""Grey levels drawn closer together than they are: the image must not outshine what is shown over it."""


class Overlay:
    """An image in grey, over it in colour what is looked at, and an outline around the set that holds `mass` of it.

    Args:
        axes: where to draw.
        picture: the image.
        all_shown: every attention [..., row, column] that will be shown, so that a colour means the same in all.
        mass: share of the attention.
    """

    def __init__(self, axes: Axes, picture: Image.Image, all_shown: Tensor, mass: float) -> None:
        self.axes, self.mass = axes, mass
        rows, columns = all_shown.shape[-2:]
        self.cell = picture.width / columns, picture.height / rows
        extent = (0.0, float(picture.width), float(picture.height), 0.0)
        axes.imshow(picture.convert("L"), extent=extent, interpolation="nearest", **FAINT)
        self.colours = axes.imshow(
            np.zeros((rows, columns)),
            cmap=COLOUR_MAP,
            alpha=OPACITY,
            extent=extent,
            interpolation="bilinear",
            vmin=100 * float(all_shown.min()),
            vmax=100 * float(all_shown.max()),
        )
        self.outline = LineCollection([], colors="white", linewidths=1.2)
        axes.add_collection(self.outline)
        bare(axes)

    def show(self, attention: Tensor) -> None:
        """Show one attention [row, column]."""
        self.colours.set_data(100 * attention.numpy())
        chosen = mass_threshold(attention.flatten(), self.mass).view_as(attention)
        self.outline.set_segments(_boundary(chosen, *self.cell))

    def add_colour_bar(self) -> None:
        """Say beside it what the colours mean."""
        bar = self.axes.figure.colorbar(self.colours, ax=self.axes, shrink=0.7, pad=0.02, aspect=18)
        bar.ax.set_facecolor("0.5")  # so that its colours are those over the image
        bar.ax.yaxis.set_major_locator(MaxNLocator(4))
        bar.ax.tick_params(labelsize=7, length=2)
        bar.set_label("% a patch", **QUIET)
        bar.outline.set_visible(False)


def enlarged(picture: Image.Image) -> Image.Image:
    """The picture at about `SIDE` pixels: small ones by a whole factor, their pixels kept; large ones shrunk."""
    factor = SIDE // max(picture.size)
    if factor >= 1:
        return picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST)
    small = picture.copy()
    small.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    return small


def bare(axes: Axes) -> None:
    """Nothing around a picture."""
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def short(text: str, length: int) -> str:
    """The text, or its beginning where it would not fit."""
    return text if len(text) <= length else text[: length - 1] + "…"


def _boundary(chosen: Tensor, width: float, height: float) -> list[np.ndarray]:
    """The sides of the cells at which a set of cells ends, each a line from (x, y) to (x, y)."""
    padded = np.pad(chosen.numpy(), 1)
    upright = np.argwhere(padded[1:-1, 1:] != padded[1:-1, :-1])
    level = np.argwhere(padded[1:, 1:-1] != padded[:-1, 1:-1])
    lines = [[(column, row), (column, row + 1)] for row, column in upright]
    lines += [[(column, row), (column + 1, row)] for row, column in level]
    return [np.array(line) * (width, height) for line in lines]
