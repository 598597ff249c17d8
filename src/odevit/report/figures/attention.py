"""Attention on the images (the paper's Fig. 6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from odevit.report.figures.style import ORANGE


def draw_attention(attention: Mapping[str, Any], pictures: Tensor) -> Figure:
    """Images, what the model looks at in its final state, and what the last layer of a teacher looks at.

    Args:
        attention: maps on the grid of patches, and which patches together hold most of the attention.
        pictures: the same images [image, channel, height, width] in 0..1.
    """
    rows = [("image", None, None), ("model", attention["maps"], attention["outlined"])]
    if attention.get("teacher"):
        rows.append(("teacher", attention["teacher"], attention["teacher_outlined"]))
    count = attention["images"]
    figure = Figure(figsize=(8, 1.45 * len(rows) + 0.5), layout="constrained", dpi=130)
    grid = figure.subplots(len(rows), count, squeeze=False)
    for row, (name, maps, outlined) in enumerate(rows):
        for column in range(count):
            axes = grid[row][column]
            picture = pictures[column].permute(1, 2, 0).numpy()
            height, width = picture.shape[:2]
            place = (0, width, height, 0)
            if maps is None:
                axes.imshow(picture, extent=place)
                axes.set_title(attention["names"][column], fontsize=10)
            else:
                axes.imshow(picture.mean(axis=2), extent=place, cmap="gray")
                axes.imshow(np.array(maps[column]), extent=place, cmap="inferno", alpha=0.65)
                _outline(axes, np.array(outlined[column]), height, width)
            axes.set_xticks([])
            axes.set_yticks([])
            if column == 0:
                axes.set_ylabel(name, fontsize=11)
    figure.suptitle(f"Attention at the final state, as seen from: {attention['query']}", fontsize=12)
    return figure


def _outline(axes: Any, chosen: np.ndarray, height: int, width: int) -> None:
    """A line around the chosen patches: where a patch inside has a neighbour outside."""
    rows, columns = chosen.shape
    padded = np.pad(chosen, 1)
    down, right = height / rows, width / columns
    for i in range(rows):
        for j in range(columns):
            if not chosen[i, j]:
                continue
            for di, dj, line in (
                (-1, 0, ((j, j + 1), (i, i))),
                (1, 0, ((j, j + 1), (i + 1, i + 1))),
                (0, -1, ((j, j), (i, i + 1))),
                (0, 1, ((j + 1, j + 1), (i, i + 1))),
            ):
                if not padded[i + 1 + di, j + 1 + dj]:
                    xs, ys = line
                    axes.plot([x * right for x in xs], [y * down for y in ys], color=ORANGE, linewidth=1.4)
