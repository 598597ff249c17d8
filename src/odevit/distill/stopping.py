"""|x(tau_l T) - h_l| < err: when a student is as near as its own discretisation lets it be."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from odevit.analysis.lipschitz import local_lipschitz
from odevit.depth import Integration
from odevit.distill.step import Distillation
from odevit.field import DotProductAttention
from odevit.objectives import approximation_bound, curvature, weight_bound
from odevit.shapes import Pixels


@dataclass
class StoppingRecipe:
    """The paper's early stopping. Off unless a bound is named."""

    bound: str = ""
    """`curvature`: eq. (8) with the curvature of the student's own path; `weights`: eq. (11) from its matrices."""
    lipschitz: float = 0.5
    """L, as the paper assumes it; 0 measures it at the student's last states instead."""
    radius: float = 10.0
    """R of eq. (11)."""
    error: str = "norm"
    """`norm`: |x - h| over the matched tokens, what eq. (8) bounds; `mse`: the mean square, what the paper compares."""
    patience: int = 10
    """Evaluations in a row with every checkpoint below the bound."""
    window: int = 3
    """Evaluations over which errors are averaged."""

    def problems(self) -> list[str]:
        """All that is wrong, as sentences."""
        found = []
        if self.bound not in ("", "curvature", "weights"):
            found.append(f"stopping.bound={self.bound!r}; expected curvature or weights, or nothing")
        if self.error not in ("norm", "mse"):
            found.append(f"stopping.error={self.error!r}; expected norm or mse")
        if self.lipschitz < 0:
            found.append(f"stopping.lipschitz={self.lipschitz}; expected L >= 0, 0 to measure it")
        for name in ("patience", "window"):
            if getattr(self, name) < 1:
                found.append(f"stopping.{name}={getattr(self, name)}; expected at least 1")
        return found


class BoundStopping(TrainerCallback):
    """Tracks the error at every checkpoint against the bound, stops when all have been below it, and draws both.

    Args:
        network: the distillation.
        images: a batch of held-out images to measure on.
        recipe: which bound, and how patient.
        folder: for bound.jsonl and bound.png.
    """

    def __init__(self, network: Distillation, images: Pixels, recipe: StoppingRecipe, folder: Path) -> None:
        self.network = network
        self.images = images
        self.recipe = recipe
        self.folder = folder
        self.history: list[list[float]] = []
        self.below = 0

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        errors, bound, lipschitz = self.measure()
        self.history.append(errors)
        recent = self.history[-self.recipe.window :]
        running = [sum(each) / len(recent) for each in zip(*recent, strict=True)]
        self.below = self.below + 1 if all(error < bound for error in running) else 0
        if state.is_world_process_zero:
            line = {"epoch": state.epoch, "bound": bound, "lipschitz": lipschitz, "errors": errors, "running": running}
            with (self.folder / "bound.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
        if self.below >= self.recipe.patience:
            print(f"stopping: every checkpoint below the bound {bound:.3g} for {self.below} evaluations", flush=True)
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero and (self.folder / "bound.jsonl").exists():
            draw_tracking(self.folder / "bound.jsonl", self.folder / "bound.png")

    @torch.no_grad()
    def measure(self) -> tuple[list[float], float, float]:
        """The error at each checkpoint, the bound, and L."""
        student, recipe = self.network.student, self.recipe
        encoder = student.encoder
        depth = encoder.depth
        told = self.network.teacher.states(self.images)
        # The bound is one of Euler's method on the path as it is integrated.
        solution = depth(encoder.enter(told[0]), Integration(solver="euler", save="all"))
        states = [encoder.leave(state) for state in solution.states]
        tokens = self._tokens()
        met = [states[n][:, tokens] for n in self.network.alignment.indices(depth.steps)]
        gaps = [(x - h[:, tokens]).float() for x, h in zip(met, told[1:], strict=True)]
        if recipe.error == "norm":
            errors = [gap.flatten(1).norm(dim=1).mean().item() for gap in gaps]
        else:
            errors = [gap.square().mean().item() for gap in gaps]
        lipschitz = recipe.lipschitz
        if lipschitz == 0:
            # In the equation's own coordinates, with its registers as they have become.
            start, *_, state = (each[:4] for each in solution.states)
            lipschitz = local_lipschitz(encoder.field, state, depth.horizon, x0=start).value.max().item()
        if recipe.bound == "curvature":
            path = [state[:, tokens] for state in states]
            bent = curvature(path, solution.times).mean().item()
            return errors, float(approximation_bound(bent, lipschitz, depth.steps, depth.horizon)), lipschitz
        attention = encoder.field.attention
        if not isinstance(attention, DotProductAttention):
            raise ValueError(
                f"stopping.bound=weights is of dot-product attention, the student has {type(attention).__name__}; "
                "use stopping.bound=curvature"
            )
        return errors, float(weight_bound(attention, recipe.radius, depth.steps, lipschitz)), lipschitz

    def _tokens(self) -> slice:
        """Whose error counts: CLS where only CLS is matched, as in the paper, otherwise all tokens."""
        goal = self.network.objective
        return self.network.student.layout(self.images).cls if goal.patches == goal.registers == 0 else slice(None)


def draw_tracking(lines: Path, picture: Path) -> None:
    """The running error at every checkpoint and the bound against epochs (the paper's Fig. 11)."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    records = [json.loads(line) for line in lines.read_text().splitlines()]
    epochs = [record["epoch"] for record in records]
    figure = Figure(figsize=(7, 3.6), layout="constrained", dpi=130)
    axes = figure.subplots()
    layers = len(records[0]["running"])
    for layer in range(layers):
        colour = colormaps["viridis"](layer / max(1, layers - 1))
        named = {"label": f"layer {layer + 1}"} if layer in (0, layers - 1) else {}
        axes.semilogy(epochs, [record["running"][layer] for record in records], color=colour, linewidth=1.3, **named)
    axes.semilogy(epochs, [record["bound"] for record in records], color="#D55E00", linestyle="--", label="bound")
    axes.set(xlabel="epoch", ylabel="distance to the teacher's layer")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(picture)
