"""Top-1 against evaluations, as one figure: plain, multistep, fitted grid, distilled, early stopping.

    python -m benchmarks.evaluations OUT.json MODEL [distilled=RUN] [data=DATA] [limit=N] [seed=0]

MODEL runs with 1 to 16 evaluations of its own solver, of methods of order 2, of multistep methods, on grids fitted to
256 held-out images, and with early stopping. RUN is MODEL after `odevit distill teacher=MODEL`. The picture is written
next to OUT.json.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from odevit.analysis.fitted_grid import fit_grid
from odevit.core.base import FixedStepSolver
from odevit.core.solver_config import SolverConfig, make_solver
from odevit.loading import load
from odevit.plotting import finish_figure, make_figure
from odevit.train.evaluate import evaluate_batches
from odevit.train.record import device_name, versions
from odevit.train.splits import evaluation_batches, load_run_data, resolve_device

MOST = 16
STEPS = (1, 2, 3, 4, 6, 8, 12, 16)
FITTED = (2, 3, 4, 6)
STOPS = [f"kl:{tolerance:g}" for tolerance in (0.3, 0.1, 0.03, 0.01, 0.003, 0.001)]
HIGHER = {True: ("exponential_heun", "etd_ab2", "etd_ab3"), False: ("heun", "ab2", "ab3")}
"""Of higher order, with and without a leak."""


def curves(model: Any, distilled: Any, held_out: Any) -> dict[str, list[tuple[SolverConfig, str | None, Any]]]:
    """What to measure, by the name of the curve: solver settings, a stop, and a model."""
    own = model.solver_config
    one, *others = HIGHER[model.field.dynamics(model.embed(held_out[:1])).leak > 0]
    requested: dict[str, list[tuple[SolverConfig, str | None, Any]]] = {
        f"plain, {own.name}": [(own.replace(steps=n), None, model) for n in STEPS],
    }
    for name in (one, *others):
        method: Any = make_solver(name)
        assert isinstance(method, FixedStepSolver)
        counts = [(n - method.restart) // method.evaluations(2) for n in STEPS]
        requested[name] = [(own.replace(name, n), None, model) for n in dict.fromkeys(counts) if n]
    fitted = [own.replace(steps=n, grid=fit_grid(model, held_out, own.replace(steps=n)).grid) for n in FITTED]
    requested["plain, fitted grid"] = [(solver_config, None, model) for solver_config in fitted]
    requested["each image stops (KL)"] = [(own, stop, model) for stop in STOPS]
    if distilled is not None:
        requested["distilled"] = [(own.replace(steps=n), None, distilled) for n in STEPS]
    return requested


def measure(requested: Iterable[tuple[SolverConfig, str | None, Any]], batches: Any) -> list[dict[str, Any]]:
    rows = []
    for solver_config, stop, model in requested:
        score = evaluate_batches(model, batches, solver_config=solver_config, stop=stop)
        row = {**solver_config.to_dict(), "nfe": score.nfe, "top1": score.top1, "images": score.images}
        rows.append(row if stop is None else {**row, "stop": stop})
    return rows


def draw(measured: dict[str, list[dict[str, Any]]], picture: Path, title: str) -> None:
    figure, (axes,) = make_figure(4.2)
    for number, (name, rows) in enumerate(measured.items()):
        points = sorted((row["nfe"], 100 * row["top1"]) for row in rows)
        style = {"linestyle": "--"} if number % 2 else {}
        axes.plot(*zip(*points, strict=True), marker="o", markersize=4, linewidth=1.4, label=name, **style)
    axes.set(xlabel="evaluations of the field per image", ylabel="top-1 (%)", xscale="log", xticks=STEPS)
    axes.set_xticklabels([str(n) for n in STEPS])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    finish_figure(figure, title).savefig(picture)


def main() -> None:
    out, name, *words = sys.argv[1:]
    options = dict(word.split("=", 1) for word in words)
    limit = int(options["limit"]) if "limit" in options else None
    place, model = resolve_device("cpu"), load(name)
    distilled = load(options["distilled"]) if "distilled" in options else None
    data = load_run_data(name, options.get("data"), model)
    held_out = next(iter(evaluation_batches(data, "validation", 256, limit=256, device=place)))["pixel_values"]
    batches = evaluation_batches(data, "test", 256, limit=limit, device=place)
    requested = curves(model, distilled, held_out)
    measured = {name: measure(rows, batches) for name, rows in requested.items()}
    images = next(iter(measured.values()))[0]["images"]
    report = {
        "command": "python -m benchmarks.evaluations " + " ".join(Path(word).name for word in sys.argv[1:]),
        "data": data.name,
        "images": images,
        "own": model.solver_config.to_dict(),
        "curves": measured,
        "device": device_name(place),
        "versions": versions(),
    }
    Path(out).write_text(json.dumps(report, indent=2) + "\n")
    draw(measured, Path(out).with_suffix(".png"), f"{data.name}, {images:,} test images")


if __name__ == "__main__":
    main()
