"""How each kind of depth moves one image: python -m benchmarks.depth_paths COMPARISON OUT.png

COMPARISON is the folder of `odevit compare`, whose runs are read. Each panel is the plane of the two principal
components of a system's own states, of one test image of each class; widths differ, so panels have no common scale.
Where there is a trajectory, it is carried on to three horizons, as broken lines.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

from odevit import load
from odevit.analysis.base import frozen
from odevit.core.field import Branch
from odevit.data.loading import load_data
from odevit.plotting import BLUE, GREY, ORANGE, finish_figure
from odevit.train.folder import read_recipe
from odevit.train.splits import evaluation_batches

KINDS = {
    "vit": "other weights in every layer",
    "dense": "every layer sees all before it",
    "ode-transformer-rk2": "two looks in every layer",
    "tied": "one block, repeated",
    "relaxed": "repeated, a little changed",
    "universal-act": "repeated until tokens halt",
    "recurrent-depth": "repeated from noise, image fed in",
    "recursions-expert": "fewer tokens in every round",
    "ode-vit": "one equation, no rest",
    "strang": "steps of second order",
    "neural-ode": "steps by tolerance",
    "ot-transformer": "a price for moving",
    "neural-ode-transformer": "weights move in time",
    "attractor": "one equation with a rest",
    "deq": "straight to the rest point",
    "hopfield-flow": "down an energy",
}
"""The systems that are shown where a comparison has them, with what moves them."""
COLUMNS, FURTHER = 4, 3
SHOWN = 3
"""The class of the image that is followed step by step."""


def main(comparison: Path, out: Path) -> None:
    found = json.loads((comparison / "comparison.json").read_text())
    names = [row["system"] for row in found["rows"] if "top1" in row and row["system"] in KINDS]
    names.sort(key=[*KINDS].index)
    rows = -(-len(names) // COLUMNS)
    figure = Figure(figsize=(8, 2.15 * rows), layout="constrained", dpi=130)
    panels = figure.subplots(rows, COLUMNS, squeeze=False).flatten()
    for axes, name in zip(panels, names, strict=False):
        draw(axes, *paths_of(comparison / name / "seed-0"))
        axes.set_title(f"{name}\n{KINDS[name]}", fontsize=8)
    for axes in panels[len(names) :]:
        axes.set_axis_off()
    finish_figure(figure).savefig(out)


def draw(axes, paths: Tensor, beyond: Tensor) -> None:
    """Paths [step, image, 2]: every image thinly, one of them with its steps; what is beyond the horizon broken."""
    axes.plot(*paths.permute(2, 0, 1), color=GREY, alpha=0.45, linewidth=0.8)
    axes.plot(*paths[-1].T, ".", color=GREY, alpha=0.6, markersize=3)
    one = paths[:, SHOWN]
    axes.plot(*one.T, "-o", color=BLUE, markersize=3, linewidth=1.3)
    axes.plot(*one[0], "o", color="white", markeredgecolor=BLUE, markersize=6)
    axes.plot(*one[-1], "o", color=ORANGE, markersize=6)
    axes.margins(0.12)
    axes.set(xticks=[], yticks=[], xlim=axes.get_xlim(), ylim=axes.get_ylim())
    axes.plot(*beyond.permute(2, 0, 1), ":", color=GREY, alpha=0.7, linewidth=0.9)
    axes.plot(*beyond[:, SHOWN].T, ":", color=ORANGE, linewidth=1.5)


@torch.no_grad()
def paths_of(run: Path) -> tuple[Tensor, Tensor]:
    """The states of one test image of each class in the plane of their principal components, [step, image, 2].

    Up to the end, and from there to three horizons where there is a trajectory.
    """
    model, data = load(run), load_data(read_recipe(run)["data"]["source"])
    batch = next(iter(evaluation_batches(data, "test", len(data.test))))
    first = torch.stack([(batch["labels"] == label).nonzero()[0, 0] for label in range(data.num_classes)])
    pixels = batch["pixel_values"][first]
    with frozen(model):
        states = torch.stack(states_of(model, pixels)).flatten(2)
        beyond = states[-1:]
        if model.depth.has_trajectory and model.solver_config.is_fixed:
            longer = model.solver_config.stretched(FURTHER)
            further = model.follow(model.embed(pixels), longer, save="all").states
            beyond = torch.stack(further[model.solver_config.steps :]).flatten(2)
    points = states.flatten(0, 1)
    middle = points.mean(dim=0)
    plane = torch.linalg.svd(points - middle, full_matrices=False).Vh[:2]
    return (states - middle) @ plane.T, (beyond - middle) @ plane.T


def states_of(model, pixels: Tensor) -> list[Tensor]:
    """Every state that the depth keeps; for one that keeps none, the inputs of its attention."""
    try:
        solution = model.follow(model.embed(pixels), save="all")
        if len(solution.states) > 2:
            return list(solution.states)
    except ValueError:
        pass
    seen: list[Tensor] = []
    branches = [module for module in model.modules() if isinstance(module, Branch)][::2]
    hooks = [branch.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0])) for branch in branches]
    solution = model.follow(model.embed(pixels))
    for hook in hooks:
        hook.remove()
    return [*(state for state in seen if state.shape == solution.state.shape), solution.state]


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
