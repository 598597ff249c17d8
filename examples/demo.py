"""See what depth does: `make demo`, or `python examples/demo.py IMAGE ...` with pictures of your own.

Takes the CIFAR-10 model that comes with the package, integrates five drawings in several ways, prints what each way
answers, and writes demo.png: what the head would say at every moment of a trajectory eight times longer than its own.
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

from drawings import DRAWINGS
from odevit import OdeViTForImageClassification
from odevit.model import make_image_processor

WAYS = [
    ("as trained", {}),
    ("fewer steps", {"steps": 6}),
    ("more steps", {"steps": 48}),
    ("Euler", {"solver": "euler", "steps": 24}),
    ("RK4", {"solver": "rk4", "steps": 24}),
    ("adaptive", {"solver": "dopri5"}),
    ("8 x the horizon", {"steps": 96, "horizon": 48.0}),
]
COLOURS = ["#0072B2", "#D55E00", "#009E73"]  # Okabe-Ito: told apart by colour-blind readers too


def main() -> None:
    logging.disable_progress_bar()
    torch.set_grad_enabled(False)
    files = sys.argv[1:]
    pictures = {Path(f).stem: Image.open(f).convert("RGB") for f in files} or {
        n: draw() for n, draw in DRAWINGS.items()
    }

    model = OdeViTForImageClassification.from_pretrained("cifar10").eval()
    pixels = make_image_processor(model.config)(list(pictures.values()), return_tensors="pt")["pixel_values"]
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(
        f"\nOne vector field of {parameters:,} parameters, dx/dt = G(x) + F(x) - (x - x0), integrated in seven ways:\n"
    )

    table = Table(box=None, header_style="bold")
    table.add_column("")
    for name in pictures:
        table.add_column(name)
    table.add_column("NFE", justify="right")
    for title, settings in WAYS:
        output = model(pixels, **settings)
        share, label = output.logits.softmax(-1).max(-1)
        answers = [f"{model.config.id2label[int(k)]} {p:.0%}" for k, p in zip(label, share, strict=True)]
        table.add_row(title, *answers, str(output.stats.nfe))
    Console(width=110).print(table)

    figure = draw(model, pictures, pixels)
    figure.savefig("demo.png")
    print("\nWhat the head says along the way is drawn in demo.png.")
    print("Next: odevit predict IMAGE, odevit train, odevit --help.\n")


def draw(model: OdeViTForImageClassification, pictures: dict[str, Image.Image], pixels: torch.Tensor) -> Figure:
    """The three likeliest classes and the speed |dx/dt|/|x|, against integration time."""
    own = model.config.horizon
    trajectory = model(pixels, steps=192, horizon=8 * own, save="all").trajectory
    times = torch.tensor(trajectory.times)
    shares = torch.stack([model.readout(state).softmax(-1) for state in trajectory.states])
    states = torch.stack(trajectory.states)
    speed = states.diff(dim=0).flatten(2).norm(dim=-1) / times.diff()[:, None] / states[1:].flatten(2).norm(dim=-1)

    figure = Figure(figsize=(2.3 * len(pictures), 5.6), layout="constrained", dpi=120)
    axes = figure.subplots(3, len(pictures), squeeze=False, height_ratios=[1.2, 1, 0.8], sharey="row")
    for column, (name, picture) in enumerate(pictures.items()):
        top, middle, bottom = axes[:, column]
        top.imshow(picture)
        top.set_title(name)
        top.axis("off")
        for colour, k in zip(COLOURS, shares[-1, column].topk(3).indices, strict=True):
            label = model.config.id2label[int(k)]
            middle.plot(times, 100 * shares[:, column, k], color=colour, label=label, linewidth=1.6)
        middle.legend(fontsize=7, frameon=False, loc="center right")
        middle.set_ylim(0, 100)
        bottom.semilogy(times[1:], speed[:, column], color="0.3")
        bottom.set_xlabel("integration time t")
        for axis in (middle, bottom):
            axis.axvline(own, color="0.6", linestyle=":", linewidth=1)
            axis.spines[["top", "right"]].set_visible(False)
    axes[1, 0].set_ylabel("probability (%)")
    axes[2, 0].set_ylabel("speed |dx/dt| / |x|")
    axes[1, 0].annotate("the model stops here", (own, 12), xytext=(own + 2, 12), fontsize=7, color="0.4")
    return figure


if __name__ == "__main__":
    main()
