"""Learning curves as a picture."""

from __future__ import annotations

from pathlib import Path

from odevit.train.callbacks import read_metrics


def draw_curves(metrics: Path, picture: Path, title: str, score: str = "validation accuracy (%)") -> None:
    """Training loss and the score on the held-out split against epochs."""
    from matplotlib.figure import Figure  # slow to import, and only needed here

    lines = read_metrics(metrics)
    losses = [(line["epoch"], line["loss"]) for line in lines if "loss" in line]
    scores = [(line["epoch"], 100 * line["eval_accuracy"]) for line in lines if "eval_accuracy" in line]
    figure = Figure(figsize=(8, 3.4), layout="constrained", dpi=130)
    left, right = figure.subplots(1, 2)
    if losses:
        left.plot(*zip(*losses, strict=True), color="#0072B2", linewidth=1.2)
    left.set(xlabel="epoch", ylabel="training loss")
    if scores:
        epochs, values = zip(*scores, strict=True)
        right.plot(
            epochs, values, color="#D55E00", linewidth=1.6, marker="o" if len(scores) < 40 else None, markersize=3
        )
        best = max(range(len(values)), key=values.__getitem__)
        right.annotate(
            f"best {values[best]:.2f}%",
            (epochs[best], values[best]),
            xytext=(0.6, 0.3),
            textcoords="axes fraction",
            arrowprops={"arrowstyle": "->", "color": "0.4"},
        )
    right.set(xlabel="epoch", ylabel=score)
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=11)
    figure.savefig(picture)
