"""A bundled model with several solvers: `make demo`, or `python examples/demo.py IMAGE ...` with your own pictures.

Integrates five drawings with the CIFAR-10 model of the package and several solver settings, prints the predictions, and
writes demo.png: class probabilities along a trajectory eight times as long as the model's own.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from matplotlib.figure import Figure
from PIL import Image
from rich.console import Console
from rich.table import Table
from transformers.utils import logging

from odevit import load
from odevit.core.image_model import ImageModel
from odevit.explorer.drawings import DRAWINGS
from odevit.plotting import COLOURS, finish_figure


@torch.no_grad()
def main() -> None:
    logging.disable_progress_bar()
    pictures = {Path(path).stem: Image.open(path).convert("RGB") for path in sys.argv[1:]}
    pictures = pictures or {name: draw() for name, draw in DRAWINGS.items()}
    model = load("cifar10")
    pixels = model.image_processor(list(pictures.values()), return_tensors="pt")["pixel_values"]
    settings = {
        "as trained": model.solver_config,
        "fewer steps": model.solver_config.replace(steps=6),
        "more steps": model.solver_config.replace(steps=48),
        "Euler": model.solver_config.replace(solver="euler", steps=24),
        "RK4": model.solver_config.replace(solver="rk4", steps=24),
        "adaptive": model.solver_config.replace(solver="dopri5"),
        "8 x the horizon": model.solver_config.stretched(8),
    }
    equation = "dx/dt = G(x) + F(x) - (x - x0)"
    print(f"\nOne vector field of {model.parameter_count:,} parameters, {equation}, with seven solver settings:\n")
    table = Table(box=None, header_style="bold")
    for name in ("", *pictures, "NFE"):
        table.add_column(name, justify="right" if name == "NFE" else "left")
    for title, solver_config in settings.items():
        output = model(pixels, solver_config=solver_config)
        best = output.logits.softmax(-1).max(-1)
        answers = [f"{model.labels[int(k)]} {p:.0%}" for p, k in zip(*best, strict=True)]
        table.add_row(title, *answers, str(output.stats.nfe))
    Console(width=110).print(table)

    draw_demo(model, pictures, pixels).savefig("demo.png")
    print("\nClass probabilities over integration time are drawn in demo.png.")
    print("Next: odevit predict IMAGE, odevit train, odevit --help.\n")


def draw_demo(model: ImageModel, pictures: dict[str, Image.Image], pixels: torch.Tensor) -> Figure:
    """The three likeliest classes and the speed |dx/dt| / |x|, against integration time."""
    horizon = model.solver_config.horizon
    long = model.solver_config.replace(steps=192, horizon=8 * horizon)
    solution = model.follow(model.embed(pixels), long, save="all")
    times, states = torch.tensor(solution.times), torch.stack(solution.states)
    probabilities = torch.stack([model.readout(state).softmax(-1) for state in states])
    speed = states.diff(dim=0).flatten(2).norm(dim=-1) / times.diff()[:, None] / states[1:].flatten(2).norm(dim=-1)

    figure = Figure(figsize=(2.3 * len(pictures), 5.6), layout="constrained", dpi=120)
    axes = figure.subplots(3, len(pictures), squeeze=False, height_ratios=[1.2, 1, 0.8], sharey="row")
    for column, (name, picture) in enumerate(pictures.items()):
        top, middle, bottom = axes[:, column]
        top.imshow(picture)
        top.set_title(name)
        top.axis("off")
        for colour, k in zip(COLOURS, probabilities[-1, column].topk(3).indices.tolist(), strict=False):
            middle.plot(times, 100 * probabilities[:, column, k], color=colour, label=model.labels[k], linewidth=1.6)
        above = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "ncols": 3}
        middle.legend(fontsize=7, frameon=False, handlelength=1, columnspacing=1, borderpad=0.1, **above)
        middle.set_ylim(0, 100)
        bottom.semilogy(times[1:], speed[:, column], color="0.3")
        bottom.set_xlabel("integration time t")
        for plot in (middle, bottom):
            plot.axvline(horizon, color="0.6", linestyle=":", linewidth=1)
    axes[1, 0].set_ylabel("probability (%)")
    axes[2, 0].set_ylabel("speed |dx/dt| / |x|")
    axes[1, 0].annotate("the model stops here", (horizon, 12), xytext=(horizon + 2, 12), fontsize=7, color="0.4")
    return finish_figure(figure)


if __name__ == "__main__":
    main()
