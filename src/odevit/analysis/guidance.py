"""dx/dt = f(x) + s grad_x log p(class | x): what would a model have to change to give another answer?"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from odevit.analysis.base import frozen
from odevit.core.base import AttentionHook
from odevit.core.image_model import ImageModel
from odevit.core.solve import solve
from odevit.core.solver_config import SolverConfig
from odevit.errors import ConfigError, integer, real
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


def guided(
    model: ImageModel, images: Pixels, label: int, strength: float = 1.0, solver_config: SolverConfig | None = None
) -> Guided:
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
    problems = integer(0, model.config.num_labels - 1).problem("label", label) + real().problem("strength", strength)
    solver_config = model.solver_config if solver_config is None else solver_config
    if not solver_config.is_fixed:
        problems.append(
            f"the way ({solver_config}) chooses its own steps; pass one of fixed steps, such as Way('heun', 12, 6.0)"
        )
    if problems:
        raise ConfigError("guided", problems)
    assert isinstance(model, nn.Module)
    layout = model.layout(*images.shape[-2:])

    def push(x: Tokens, t: float, observer: AttentionHook | None) -> Tokens:
        with torch.enable_grad():
            state = x.detach().requires_grad_(True)
            likely = model.readout(state, layout).log_softmax(-1)[:, label].sum()
            (slope,) = torch.autograd.grad(likely, state)
        return strength * slope

    with frozen(model), torch.no_grad():
        x0 = model.embed(images)
        dynamics = model.field.dynamics(x0)
        plain, pushed = (
            solve(
                each,
                x0,
                solver=solver_config.method,
                steps=solver_config.steps,
                t1=float(solver_config.horizon),
                grid=solver_config.grid,
            ).state
            for each in (dynamics, dynamics.add_term(push))
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
