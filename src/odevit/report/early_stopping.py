"""|x(tau_l T) - h_l| < bound: the epochs that early stopping would have saved (the paper's Fig. 9 and 11)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from torch import Tensor

from odevit.distill.bound_stopping import draw_tracking
from odevit.plotting import BLUE, ORANGE, finish_figure, make_figure
from odevit.report.section import SECTIONS, Figures, Numbers, Section
from odevit.report.study import Study
from odevit.train.folder import read_recipe
from odevit.train.record import read_metrics


@SECTIONS.register("early_stopping")
class EarlyStopping(Section):
    """Bound and distances of a distillation, for runs that tracked them."""

    title = "Could training have stopped earlier?"
    order = 90
    text = """
{% if stopping %}
{% set never = "No: the distances to all layers were not below the bound for " ~ stopping.patience ~
   " evaluations in a row before training ended." %}
{% call picture("stop", missing="" if stopping.stop else never) %}Held-out agreement at two epochs of this run (the
paper's Fig. 9).{% endcall %}
{% call picture("tracking") %}Distance to every layer during training, and the bound (the paper's Fig. 11).{% endcall %}
{% endif %}
"""

    def measure(self, study: Study) -> dict[str, Any]:
        return {"stopping": stopping_numbers(Path(study.run))}

    def draw(self, numbers: Numbers, pictures: Tensor) -> Figures:
        stopping = numbers["stopping"]
        if stopping is None:
            return {}
        figures = {"tracking": draw_tracking(stopping["epochs"], stopping["running"], stopping["bound"])}
        if stopping["score_at_stop"] is not None and stopping["score_at_end"] is not None:
            figures["stop"] = draw_stop(stopping)
        return figures


def stopping_numbers(folder: Path) -> dict[str, Any] | None:
    """The errors and the bound of every evaluation, and the held-out scores where training could have ended and ended.

    None for a run that did not track a bound.
    """
    lines = read_metrics(folder / "bound.jsonl")
    if not lines:
        return None
    patience = int((read_recipe(folder).get("stopping") or {}).get("patience", 1))
    metrics = read_metrics(folder / "metrics.jsonl")
    scores = {line["epoch"]: line["eval_accuracy"] for line in metrics if "eval_accuracy" in line}
    stop, end = stopping_epoch(lines, patience), lines[-1]["epoch"]
    return {
        "epochs": [line["epoch"] for line in lines],
        "bound": [line["bound"] for line in lines],
        "running": [line["running"] for line in lines],
        "patience": patience,
        "stop": stop,
        "score_at_stop": None if stop is None else scores.get(stop),
        "end": end,
        "score_at_end": scores.get(end),
    }


def stopping_epoch(lines: Sequence[Numbers], patience: int) -> float | None:
    """The epoch at which every checkpoint had been below the bound for `patience` evaluations in a row."""
    below = 0
    for line in lines:
        below = below + 1 if all(error < line["bound"] for error in line["running"]) else 0
        if below >= patience:
            return float(line["epoch"])
    return None


def draw_stop(stopping: Numbers) -> Figure:
    """Held-out agreement where training could have stopped, and where it ended."""
    figure, (axes,) = make_figure(2.6)
    stop, end = stopping["stop"], stopping["end"]
    early, late = 100 * stopping["score_at_stop"], 100 * stopping["score_at_end"]
    names = (f"bound met for {stopping['patience']} evaluations:\nepoch {stop:g}", f"end of training:\nepoch {end:g}")
    axes.bar_label(axes.barh(names, (early, late), color=(ORANGE, BLUE), height=0.6), fmt="%.2f%%", padding=4)
    axes.invert_yaxis()
    axes.set(xlabel="agreement with the teacher on held-out images (%)", xlim=(0, 112))
    title = f"Stopping early saves {1 - stop / end:.0%} of the epochs and costs {late - early:.2f} points"
    return finish_figure(figure, title)
