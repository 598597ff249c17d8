"""|x(tau_l T) - h_l| < err: stop when a student is as near to its teacher as the discretisation error allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback

from odevit.analysis.lipschitz import local_lipschitz
from odevit.core.attention import DotProductAttention
from odevit.core.base import Field
from odevit.distill.distillation import StoppingRecipe
from odevit.distill.loss import LayerDistillation
from odevit.objectives.bounds import approximation_bound, curvature, weight_bound
from odevit.tokens import Pixels
from odevit.train.folder import RunFolder
from odevit.train.record import read_metrics, write_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RADIUS = 10.0
"""R of eq. (11)."""


@dataclass(eq=False)
class BoundStopping(TrainerCallback):
    """Stops when the error at every matched layer has been below the bound for `patience` evaluations.

    The errors are measured on `images`, a held-out batch; bound.jsonl and bound.png have errors and bound over epochs.
    """

    network: LayerDistillation
    images: Pixels
    recipe: StoppingRecipe
    folder: RunFolder

    def __post_init__(self) -> None:
        if self.recipe.bound == "weights":
            require_dot_product(self.network.student.encoder.field)  # refuse now, not at the first evaluation
        self.lines = self.folder.path / "bound.jsonl"
        self.earlier = read_metrics(self.lines)
        self.history: list[list[float]] = []
        self.below = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # A resumed run continues the count and drops the lines after its checkpoint.
        earlier = [line for line in self.earlier if state.global_step and line["epoch"] <= state.epoch]
        for line in earlier:
            self._count(line["errors"], line["bound"])
        if state.is_world_process_zero:
            write_lines(self.folder.register(self.lines.name), earlier)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        errors, bound, lipschitz = self.measure()
        running = self._count(errors, bound)
        if state.is_world_process_zero:
            line = {"epoch": state.epoch, "bound": bound, "lipschitz": lipschitz, "errors": errors, "running": running}
            write_lines(self.lines, [line], "a")
        if self.below >= self.recipe.patience:
            print(f"stopping: every checkpoint below the bound {bound:.3g} for {self.below} evaluations", flush=True)
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        lines: list[Any] = read_metrics(self.lines)
        if state.is_world_process_zero and lines:
            tracked = ([line[key] for line in lines] for key in ("epoch", "running", "bound"))
            draw_tracking(*tracked).savefig(self.folder.register("bound.png"))

    def _count(self, errors: list[float], bound: float) -> list[float]:
        """The errors averaged over the window; counts consecutive evaluations with all of them below the bound."""
        self.history.append(errors)
        recent = self.history[-self.recipe.window :]
        running = [sum(values) / len(recent) for values in zip(*recent, strict=True)]
        self.below = self.below + 1 if all(error < bound for error in running) else 0
        return running

    @torch.no_grad()
    def measure(self) -> tuple[list[float], float, float]:
        """The error at each matched layer, the bound, and L."""
        student, recipe, objective = self.network.student, self.recipe, self.network.objective
        encoder, solver_config = student.encoder, student.solver_config
        steps, horizon, lipschitz = solver_config.steps, solver_config.horizon, recipe.lipschitz
        layers = self.network.teacher.states(self.images)
        # The bound is that of Euler's method.
        solution = student.follow(encoder.encode_tokens(layers[0]), solver_config.replace(solver="euler"), save="all")
        states = [encoder.decode_tokens(state) for state in solution.states]
        # CLS where only CLS is matched, as in the paper, otherwise all tokens.
        only_cls = objective.patches == objective.registers == objective.others == 0
        tokens = self.network.teacher.layout(self.images).cls if only_cls else slice(None)
        matched = zip(self.network.alignment.indices(steps), layers[1:], strict=True)
        differences = [(states[step] - layer)[:, tokens].float() for step, layer in matched]
        errors = [difference.flatten(1).norm(dim=1).mean().item() for difference in differences]
        if lipschitz == 0:
            # In the space of the field, registers included.
            start, last = solution.states[0][:4], solution.states[-1][:4]
            lipschitz = local_lipschitz(encoder.field, last, horizon, x0=start).value.max().item()
        if recipe.bound == "curvature":
            second = curvature([state[:, tokens] for state in states], solution.times).mean().item()
            return errors, float(approximation_bound(second, lipschitz, steps, horizon)), lipschitz
        bound = weight_bound(require_dot_product(encoder.field), RADIUS, steps, lipschitz)
        return errors, float(bound), lipschitz


def require_dot_product(field: Field) -> DotProductAttention:
    """The attention of a field with one set of weights: the bound of eq. (11) is computed from its matrices."""
    attention = getattr(field, "attention", None)
    if not isinstance(attention, DotProductAttention):
        has = "weights that move with time" if attention is None else type(attention).__name__
        raise ValueError(
            f"stopping.bound=weights is of one dot-product attention, the student has {has}; "
            "use stopping.bound=curvature"
        )
    return attention


def draw_tracking(epochs: Sequence[float], running: Sequence[Sequence[float]], bound: Sequence[float]) -> Figure:
    """The running error at every checkpoint and the bound against epochs (the paper's Fig. 11)."""
    from matplotlib import colormaps

    from odevit.plotting import ORANGE, finish_figure, make_figure

    figure, (axes,) = make_figure(3.6)
    layers = list(zip(*running, strict=True))
    for layer, errors in enumerate(layers):
        colour = colormaps["viridis"](layer / max(1, len(layers) - 1))
        label = f"layer {layer + 1}" if layer in (0, len(layers) - 1) else None
        axes.semilogy(epochs, errors, color=colour, linewidth=1.3, label=label)
    axes.semilogy(epochs, bound, color=ORANGE, linestyle="--", label="bound")
    axes.set(xlabel="epoch", ylabel="distance to the teacher's layer")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    return finish_figure(figure)
