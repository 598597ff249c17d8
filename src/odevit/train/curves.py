"""Learning curves as a picture."""

from __future__ import annotations

from pathlib import Path

from odevit.train.callbacks import read_metrics


def draw_curves(metrics: Path, picture: Path, title: str, score: str = "validation accuracy (%)") -> None:
    """Training loss and the score on the held-out split against epochs."""
    from odevit.look import BLUE, GREY, ORANGE, finish, make_figure  # matplotlib is slow to import

    lines = read_metrics(metrics)
    losses = [(line["epoch"], line["loss"]) for line in lines if "loss" in line]
    scores = [(line["epoch"], 100 * line["eval_accuracy"]) for line in lines if "eval_accuracy" in line]
    figure, (left, right) = make_figure(3.4, 2)
    if losses:
        left.plot(*zip(*losses, strict=True), color=BLUE, linewidth=1.2)
    left.set(xlabel="epoch", ylabel="training loss")
    if scores:
        marker = "o" if len(scores) < 40 else None
        right.plot(*zip(*scores, strict=True), color=ORANGE, linewidth=1.6, marker=marker, markersize=3)
        epoch, best = max(scores, key=lambda point: point[1])
        arrow = {"arrowstyle": "->", "color": GREY}
        right.annotate(
            f"best {best:.2f}%", (epoch, best), xytext=(0.6, 0.3), textcoords="axes fraction", arrowprops=arrow
        )
    right.set(xlabel="epoch", ylabel=score)
    for axes in (left, right):
        axes.grid(alpha=0.3)
    finish(figure, title).savefig(picture)
