"""When every layer was met within the bound: what early stopping would have given (the paper's Fig. 9 and 11)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import yaml

from odevit.train.callbacks import read_metrics


def stopping_numbers(run: str | os.PathLike[str]) -> dict[str, Any] | None:
    """The errors and the bound of every evaluation, and the held-out score where training could have ended and did.

    None for a run that did not track a bound.
    """
    folder = Path(run)
    if not (folder / "bound.jsonl").is_file():
        return None
    lines = [json.loads(line) for line in (folder / "bound.jsonl").read_text().splitlines()]
    if not lines:
        return None
    recipe = yaml.safe_load((folder / "recipe.yaml").read_text()) if (folder / "recipe.yaml").is_file() else {}
    patience = int((recipe.get("stopping") or {}).get("patience", 1))
    scores = {
        line["epoch"]: line["eval_accuracy"]
        for line in read_metrics(folder / "metrics.jsonl")
        if "eval_accuracy" in line
    }
    stop = stopping_epoch(lines, patience)
    return {
        "epochs": [line["epoch"] for line in lines],
        "bound": [line["bound"] for line in lines],
        "running": [line["running"] for line in lines],
        "patience": patience,
        "stop": stop,
        "score_at_stop": None if stop is None else scores.get(stop),
        "end": lines[-1]["epoch"],
        "score_at_end": scores.get(lines[-1]["epoch"]),
    }


def stopping_epoch(lines: list[dict[str, Any]], patience: int) -> float | None:
    """The epoch at which every checkpoint had been below the bound for `patience` evaluations in a row."""
    below = 0
    for line in lines:
        below = below + 1 if all(error < line["bound"] for error in line["running"]) else 0
        if below >= patience:
            return float(line["epoch"])
    return None
