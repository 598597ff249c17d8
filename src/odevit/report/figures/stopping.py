"""What early stopping would have given (the paper's Fig. 9)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from odevit.report.figures.style import BLUE, ORANGE, finish, make_figure


def draw_stop(stopping: Mapping[str, Any]) -> Figure:
    """Held-out agreement where training could have stopped, and where it ended."""
    figure, (axes,) = make_figure(2.6)
    bars = [
        (f"bound met for {stopping['patience']} evaluations:\nepoch {stopping['stop']:g}", "score_at_stop", ORANGE),
        (f"end of training:\nepoch {stopping['end']:g}", "score_at_end", BLUE),
    ]
    for number, (_, key, colour) in enumerate(bars):
        value = 100 * stopping[key]
        axes.barh(number, value, color=colour, height=0.6)
        axes.annotate(f"{value:.2f}%", (value, number), xytext=(4, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(bars)), labels=[name for name, _, _ in bars])
    axes.invert_yaxis()
    axes.set(xlabel="agreement with the teacher on held-out images (%)", xlim=(0, 112))
    saved = 1 - stopping["stop"] / stopping["end"]
    lost = 100 * (stopping["score_at_end"] - stopping["score_at_stop"])
    return finish(figure, f"Stopping early saves {saved:.0%} of the epochs and costs {lost:.2f} points")
