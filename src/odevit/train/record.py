"""record.json, curves.png, README.md: the numbers of a run, with everything needed to make them again."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from jinja2 import Environment, PackageLoader, StrictUndefined

from odevit.train.evaluate import Score
from odevit.train.recipe import Recipe
from odevit.version import __version__


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of JSON lines; a last one that a kill cut short is left out."""
    if not path.exists():
        return []
    lines = []
    for text in path.read_text().splitlines():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            break
    return lines


def write_lines(path: Path, lines: list[dict[str, Any]], mode: str = "w") -> None:
    """Write a file of JSON lines, or append to it with the mode `a`."""
    with path.open(mode) as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def versions() -> dict[str, str]:
    """The versions that a number depends on."""
    return {
        "odevit": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def device_name(device: torch.device) -> str:
    """The device in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    count = torch.get_num_threads()
    return f"CPU ({count} thread{'s' * (count > 1)})"


def make_record(
    recipe: Recipe, score: Score, *, params: int, validation: float, device: torch.device, command: str, **more: Any
) -> dict[str, Any]:
    """The record of one run; `more` are the figures particular to its kind, kept for the run and for its seed."""
    lines = read_metrics(recipe.folder / "metrics.jsonl")
    figures = {"top1": score.top1, "top3": score.top3, "top5": score.top5, **more}
    seconds = lines[-1]["seconds"] if lines else 0.0
    return {
        "name": recipe.name,
        "command": command,
        "data": recipe.data.source,
        "images": score.images,
        "params": params,
        "nfe": score.nfe,
        **figures,
        "milliseconds": score.milliseconds,
        **({"unsettled": score.unsettled, "doubt": score.warning} if score.warning else {}),
        "epochs": round(lines[-1]["epoch"], 2)
        if (recipe.train.updates or recipe.train.seconds) and lines
        else recipe.train.epochs,
        "seconds": seconds,
        "device": device_name(device),
        "versions": versions(),
        "seeds": [{"seed": recipe.seed, **figures, "validation": validation, "seconds": seconds}],
    }


def draw_curves(metrics: Path, picture: Path, title: str, score: str = "validation accuracy (%)") -> None:
    """Training loss and the score on the held-out split against epochs; evaluations where a solver chooses them.

    Phases are told apart by a line and their names. Only the last of them selects weights: what is best is best there.
    """
    from odevit.plotting import BLUE, GREY, ORANGE, finish_figure, make_figure  # matplotlib is slow to import

    lines = read_metrics(metrics)
    losses = [(line["epoch"], line["loss"]) for line in lines if "loss" in line]
    scores = [(line["epoch"], 100 * line["eval_accuracy"]) for line in lines if "eval_accuracy" in line]
    costs = [(line["epoch"], line["nfe"]) for line in lines if "rtol" in line and "nfe" in line]
    began = phase_beginnings(lines)
    figure, (left, right, *third) = make_figure(3.4, 3 if costs else 2)
    if losses:
        left.plot(*zip(*losses, strict=True), color=BLUE, linewidth=1.2)
    left.set(xlabel="epoch", ylabel="training loss")
    if scores:
        marker = "o" if len(scores) < 40 else None
        right.plot(*zip(*scores, strict=True), color=ORANGE, linewidth=1.6, marker=marker, markersize=3)
        selecting = [point for point in scores if point[0] > max(began.values(), default=0.0)] or scores
        epoch, best = max(selecting, key=lambda point: point[1])
        arrow = {"arrowstyle": "->", "color": GREY}
        right.annotate(
            f"best {best:.2f}%", (epoch, best), xytext=(0.6, 0.3), textcoords="axes fraction", arrowprops=arrow
        )
    right.set(xlabel="epoch", ylabel=score)
    for axes in third:
        axes.plot(*zip(*costs, strict=True), color=GREY, linewidth=1.2)
        axes.set(xlabel="epoch", ylabel="evaluations of a batch")
    for axes in (left, right, *third):
        axes.grid(alpha=0.3)
        if began:
            axes.set_xlim(left=0)
        for place, (name, epoch) in enumerate(began.items()):
            if epoch:
                axes.axvline(epoch, color=GREY, linewidth=0.8, linestyle=":")
            height = 1.02 + 0.06 * (place % 2)  # neighbours on two lines: a short phase is narrower than its name
            axes.text(
                epoch, height, name.replace("_", " "), transform=axes.get_xaxis_transform(), color=GREY, fontsize=8
            )
    finish_figure(figure, title).savefig(picture)


def phase_beginnings(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The epoch at which each phase of a training began, by name; nothing where there were none."""
    began: dict[str, float] = {}
    before = 0.0
    for line in lines:
        if "phase" in line:
            began.setdefault(line["phase"], before)
            before = line["epoch"]
    return began


def write_card(path: Path, template: str, **facts: Any) -> None:
    """README.md of a run: a template that extends `train/card.md.j2`, with the facts it asks for."""
    environment = Environment(
        loader=PackageLoader("odevit", "."),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    path.write_text(environment.get_template(template).render(facts, folder=path.parent.name))
