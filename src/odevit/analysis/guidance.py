"""dx/dt = f(x) + s grad_x log p(class | x): what would a model have to change to give another answer?"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from odevit.analysis.untouched import untouched
from odevit.errors import ConfigError, number, whole
from odevit.field.dynamics import Observer
from odevit.model import Askable
from odevit.solver import Way, solve
from odevit.tokens import Logits, Pixels, Tokens


@dataclass(frozen=True)
class Guided:
    """Two trajectories of the same images, on their own and pushed.

    Args:
        label, strength: of the push.
        logits, guided: what the head says at the end of the plain and of the pushed trajectory.
        change: |x_s(T) - x(T)| of every patch [batch, row, column]: where the answer would have to be made.
        shift: the same over |x(T)|, of all tokens together [batch].
    """

    label: int
    strength: float
    logits: Logits
    guided: Logits
    change: Tensor
    shift: Tensor

    @property
    def raised(self) -> Tensor:
        """How much likelier the class became, in nats [batch]."""
        after, before = (logits.log_softmax(-1)[:, self.label] for logits in (self.guided, self.logits))
        return after - before


def guided(model: Askable, images: Pixels, label: int, strength: float = 1.0, way: Way | None = None) -> Guided:
    """Integrate images with a term that pushes every state towards a class, or away from it.

    The guidance of diffusion models (Dhariwal and Nichol 2021), with the model's own head as the classifier. Where the
    push has to be strong, or changes much, the field holds on to its answer.

    Args:
        model: a model with a trajectory.
        images: normalised pixels [batch, channel, height, width].
        label: the number of the class.
        strength: s; negative pushes away from the class, 0 leaves the trajectory alone.
        way: how to integrate, in fixed steps; the model's own unless given.
    """
    problems = whole(0, model.config.num_labels - 1).problem("label", label) + number().problem("strength", strength)
    way = model.way if way is None else way
    if not way.is_fixed:
        problems.append(f"the way ({way}) chooses its own steps; pass one of fixed steps, such as Way('heun', 12, 6.0)")
    if problems:
        raise ConfigError("guided", problems)
    assert isinstance(model, nn.Module)
    layout = model.layout(*images.shape[-2:])

    def push(x: Tokens, t: float, observer: Observer | None) -> Tokens:
        with torch.enable_grad():
            state = x.detach().requires_grad_(True)
            likely = model.readout(state, layout).log_softmax(-1)[:, label].sum()
            (slope,) = torch.autograd.grad(likely, state)
        return strength * slope

    with untouched(model), torch.no_grad():
        x0 = model.embed(images)
        dynamics = model.field.dynamics(x0)
        plain, pushed = (
            solve(each, x0, solver=way.method, steps=way.steps, t1=float(way.horizon), grid=way.grid).state
            for each in (dynamics, dynamics.pushed(push))
        )
        moved = (pushed - plain).norm(dim=-1)
        return Guided(
            label,
            strength,
            model.readout(plain, layout),
            model.readout(pushed, layout),
            moved[:, layout.patches].unflatten(-1, layout.grid),
            moved.norm(dim=-1) / plain.flatten(1).norm(dim=-1),
        )
