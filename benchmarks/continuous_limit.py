"""Does depth have a limit? The same field in 3, 6, 12, 24, 48 layers, with and without 1/L, and what random weights do.

    python -m benchmarks.continuous_limit benchmarks/continuous_limit.json docs/continuous_limit.png [RUNS]

Trains two tied models of twelve layers on digits (three minutes on a core of a CPU), one with 1/L and one without, or
takes them from the folder RUNS, and runs them with other numbers of layers. Then layers with weights of their own: on a
smooth curve of weights, and independent of each other. What is compared is x_L with x_2L: a limit is approached with
order p where the distance falls like L^-p.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from odevit import OdeViTForImageClassification
from odevit.cli import main as command
from odevit.core.field import Branch, VectorField
from odevit.core.layers import Mlp, spectral_
from odevit.core.solve import solve
from odevit.core.solver_config import SolverConfig
from odevit.plotting import BLUE, COLOURS, GREY, MARKERS, PINK, finish_figure, make_figure
from odevit.systems.tied import TiedDepth
from odevit.time_varying.knot_schedule import KnotSchedule
from odevit.time_varying.knots import KnottedField
from odevit.train.record import versions
from odevit.train.splits import evaluation_batches, load_run_data

LAYERS = (3, 6, 12, 24, 48)
FINER = (*LAYERS, 96)
BLOCKS = ("euler", "lie_trotter", "rk2", "rk4", "strang")
SEEDS = 5
STATES = 32
"""Images whose states are compared; answers are those of the whole test split."""
RUNS = {"1/L": ["depth.scaling=1/L"], "none": []}


def trained(folder: Path, scaling: str) -> OdeViTForImageClassification:
    """A tied model of twelve layers, trained on digits unless it is there."""
    run = folder / ("scaled" if scaling == "1/L" else "plain")
    if not (run / "config.json").exists():
        words = ["depth=tied", "depth.block=euler", "model.leak=0", "model.steps=12", "device=cpu", "train.epochs=20"]
        command(["train", f"out={run}", *words, *RUNS[scaling]])
    return OdeViTForImageClassification.from_pretrained(run).eval()


def distances(states: dict[int, Tensor], start: Tensor) -> dict[str, Any]:
    """|x_2L - x_L| / |x_2L - x_0| for every L, its order between neighbours, and how far a state moved."""
    apart = [float((states[2 * n] - states[n]).norm() / (states[2 * n] - start).norm()) for n in LAYERS]
    orders = [math.log2(here / there) for here, there in pairwise(apart)]
    moved = [float((states[n] - start).norm() / start.norm()) for n in LAYERS]
    return {"distance_to_twice_as_many": apart, "order": orders, "moved": moved}


def tied(field: VectorField, x0: Tensor, exact: Tensor | None = None, **options: Any) -> dict[str, Any]:
    """One field, repeated, and its distance from the `exact` solution of its equation, where there is one."""
    states = {n: TiedDepth(lambda: field, SolverConfig("euler", n, 1.0), **options)(x0).state for n in FINER}
    found = distances(states, x0)
    if exact is not None:
        errors = [float((states[n] - exact).norm() / (exact - x0).norm()) for n in LAYERS]
        found |= {"error": errors, "error_order": [math.log2(here / there) for here, there in pairwise(errors)]}
    return found


def untied(make_layers: Callable[[int], list[VectorField]], x0: Tensor, power: float) -> dict[str, Any]:
    """Layers with weights of their own, each of length L^-power."""
    states = {}
    for n in FINER:
        x = x0
        for layer in make_layers(n):
            x = solve(layer, x, solver="euler", steps=1, t1=n**-power).state
        states[n] = x
    return distances(states, x0)


def random_field(like: VectorField) -> VectorField:
    """Weights as they begin: every projection random, with spectral norm 1."""
    hidden = cast(Mlp, cast(Branch, like.components["mlp"]).body).up_proj.out_features
    field = VectorField(like.dim, like.attention.heads, hidden / like.dim)
    for name, weight in field.named_parameters():
        if name.endswith("_proj.weight"):
            spectral_(weight)
    return field.double().eval()


def smooth(like: VectorField) -> Callable[[int], list[VectorField]]:
    """Layers along a curve through three random fields: W((l - 1/2) / L)."""
    curve = KnottedField([random_field(like) for _ in range(3)], KnotSchedule.of(3, 1.0, "linear"))
    return lambda layers: [curve.at((n + 0.5) / layers) for n in range(layers)]


def mean(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {key: [sum(row[key][n] for row in rows) / len(rows) for n in range(len(rows[0][key]))] for key in rows[0]}


def main(out: str, picture: str, runs: str | None = None) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(runs or scratch)
        models = {scaling: trained(folder, scaling) for scaling in RUNS}
        read = load_run_data(str(folder / "scaled"), None, models["1/L"], None)
    batches = list(evaluation_batches(read, "test", 500, device=torch.device("cpu")))
    with torch.no_grad():
        report = measured(models, *(torch.cat([batch[key] for batch in batches]) for key in ("pixel_values", "labels")))
    Path(out).write_text(json.dumps(report, indent=2) + "\n")
    draw(json.loads(Path(out).read_text()), picture)


def measured(models: dict[str, OdeViTForImageClassification], pixels: Tensor, labels: Tensor) -> dict[str, Any]:
    """Every number of the report."""
    top1 = {
        scaling: [100 * float((model(pixels, steps=n).logits.argmax(-1) == labels).double().mean()) for n in LAYERS]
        for scaling, model in models.items()
    }
    x0, z0 = (models[scaling].embed(pixels[:STATES]).double() for scaling in RUNS)
    field, plain = (cast(VectorField, models[scaling].depth.field.double()) for scaling in RUNS)
    exact = solve(field, x0, solver="rk4", steps=96, t1=1.0).state
    curves = {f"tied, 1/L, {block}": tied(field, x0, exact, block=block, scaling="1/L") for block in BLOCKS}
    curves["tied, without 1/L"] = tied(plain, z0, block="euler")
    own = {
        "own weights, smooth, 1/L": lambda: untied(smooth(field), x0, 1.0),
        "own weights, independent, 1/L": lambda: untied(lambda n: [random_field(field) for _ in range(n)], x0, 1.0),
        "own weights, independent, 1/sqrt(L)": lambda: untied(
            lambda n: [random_field(field) for _ in range(n)], x0, 0.5
        ),
    }
    for name, measure in own.items():
        rows = []
        for seed in range(SEEDS):
            torch.manual_seed(seed)
            rows.append(measure())
        curves[name] = mean(rows)
    report = {
        "layers": LAYERS,
        "images": len(labels),
        "states": STATES,
        "seeds": SEEDS,
        "trained_with": 12,
        "top1": top1,
    }
    return report | {"curves": curves, "versions": versions()}


def draw(report: dict[str, Any], picture: str) -> None:
    figure, (left, middle, right) = make_figure(3.4, 3)
    shown = [name for name in report["curves"] if "rk" not in name]
    for number, name in enumerate(shown):
        style = {"color": (*COLOURS, GREY)[number], "marker": MARKERS[number], "markersize": 4}
        curve = report["curves"][name]
        left.plot(report["layers"], curve["distance_to_twice_as_many"], label=name, **style)
        middle.plot(report["layers"], curve["moved"], **style)
    for (scaling, values), colour, marker in zip(report["top1"].items(), (BLUE, PINK), "oD", strict=True):
        label = "with 1/L" if scaling == "1/L" else "without"
        right.plot(report["layers"], values, color=colour, marker=marker, markersize=4, label=label)
    for axes in (left, middle):
        axes.set_yscale("log")
    for axes in (left, middle, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks(report["layers"], [str(n) for n in report["layers"]])
        axes.set_xlabel("layers L")
    left.set_title("|x_2L − x_L| / |x_2L − x_0|", fontsize=9)
    middle.set_title("|x_L − x_0| / |x_0|", fontsize=9)
    right.set_title("top-1 (%), trained with L = 12", fontsize=9)
    right.legend(fontsize=7)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=7)
    finish_figure(figure).savefig(picture)


if __name__ == "__main__":
    main(*sys.argv[1:])
