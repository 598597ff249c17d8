"""Accuracy of students with few steps, as a picture: python -m benchmarks.breaking OUT.png TITLE=RUN...

Top-1 against the evaluations of the field, a line for every solver, from coarse steps to those drawn in training. RUN
is the prefix of two files of `benchmarks.solver_settings`: RUNcoarse-cpu.json with few steps, RUNany_way-gpu.json with
many. They are measured on different images, so the former have open markers and the latter filled ones.
"""

from __future__ import annotations

import json
import sys
from itertools import groupby
from pathlib import Path

from odevit.plotting import COLOURS, GREY, MARKERS, finish_figure, make_figure


def main(out: str, *runs: str) -> None:
    figure, panels = make_figure(3.6, len(runs), sharey=True)
    for axes, (title, _, run) in zip(panels, (word.partition("=") for word in runs), strict=True):
        draw(axes, *(json.loads(Path(f"{run}{name}.json").read_text()) for name in ("coarse-cpu", "any_way-gpu")))
        axes.set_title(title, fontsize=10)
    panels[0].set_ylabel("test top-1 (%)")
    panels[-1].legend(frameon=False, fontsize=9)
    finish_figure(figure).savefig(out)


def draw(axes, coarse: dict, fine: dict) -> None:
    """One student."""
    own = fine["ways"][0]
    rows = [
        (solver_config["solver"], solver_config["nfe"], solver_config["top1"], False)
        for solver_config in coarse["ways"][1:]
    ]
    rows += [(w["solver"], w["nfe"], w["top1"], True) for w in fine["ways"] if w["horizon"] == own["horizon"]]
    axes.axhline(100 * own["top1"], color=GREY, linewidth=0.8, linestyle="--")
    solvers = groupby(sorted(rows), key=lambda row: row[0])
    for (solver, found), colour, marker in zip(solvers, COLOURS, MARKERS, strict=False):
        _, evaluations, right, many = zip(*found, strict=True)
        percent = [100 * share for share in right]
        axes.plot(evaluations, percent, color=colour, linewidth=1.2, label=solver)
        for nfe, top1, filled in zip(evaluations, percent, many, strict=True):
            axes.plot(nfe, top1, marker, color=colour, markerfacecolor=colour if filled else "white", markersize=5)
    axes.set_xscale("log", base=2)
    ticks = (2, 4, 8, 16, 32, 64)
    axes.set_xticks(ticks, [str(n) for n in ticks])
    axes.set_xlabel("evaluations of the field")
    axes.set_ylim(0, 100)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
