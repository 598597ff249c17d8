"""dx/dt = f(x) + s grad_x log p(class | x): trajectories that are guided towards a class, or away from it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from odevit.analysis.base import frozen, integrate
from odevit.core.base import AttentionHook
from odevit.core.image_model import ImageModel
from odevit.core.solver_config import SolverConfig
from odevit.errors import ConfigError, integer, real
from odevit.tokens import Logits, Pixels, Tokens


@dataclass(frozen=True)
class Guided:
    """Two trajectories of the same images, without guidance and with it.

    Args:
        label, strength: of the guidance.
        logits, guided: at the end of the trajectory without guidance and with it.
        change: |x_s(T) - x(T)| of every patch [batch, row, column]: the patches that the answer depends on.
        shift: |x_s(T) - x(T)| / |x(T)| of all tokens together [batch].
    """

    label: int
    strength: float
    logits: Logits
    guided: Logits
    change: Tensor
    shift: Tensor

    @property
    def raised(self) -> Tensor:
        """The increase of log p(class) [batch], in nats."""
        after, before = (logits.log_softmax(-1)[:, self.label] for logits in (self.guided, self.logits))
        return after - before


def guided(
    model: ImageModel, images: Pixels, label: int, strength: float = 1.0, solver_config: SolverConfig | None = None
) -> Guided:
    """Integrate images with a term that pushes every state towards a class, or away from it.

    The guidance of diffusion models (Dhariwal and Nichol 2021), with the model's own head as the classifier. An answer
    is robust if only strong guidance, or a large change of the state, alters it.

    Args:
        model: a model with a trajectory.
        images: normalised pixels [batch, channel, height, width].
        label: the number of the class.
        strength: s; negative pushes away from the class, 0 does not change the trajectory.
        solver_config: how to integrate, in fixed steps; the model's own unless given.
    """
    problems = integer(0, model.config.num_labels - 1).problem("label", label) + real().problem("strength", strength)
    solver_config = model.solver_config if solver_config is None else solver_config
    if not solver_config.is_fixed:
        problems.append(
            f"{solver_config.name} chooses its own steps; pass a solver of fixed steps: SolverConfig('heun', 12, 6.0)"
        )
    if problems:
        raise ConfigError("guided", problems)
    assert isinstance(model, nn.Module)
    layout = model.layout(*images.shape[-2:])

    def push(x: Tokens, t: float, observer: AttentionHook | None) -> Tokens:
        with torch.enable_grad():
            state = x.detach().requires_grad_(True)
            log_p = model.readout(state, layout).log_softmax(-1)[:, label].sum()
            (gradient,) = torch.autograd.grad(log_p, state)
        return strength * gradient

    with frozen(model), torch.no_grad():
        x0 = model.embed(images)
        dynamics = model.field.dynamics(x0)
        plain, pushed = (integrate(each, x0, solver_config).state for each in (dynamics, dynamics.add_term(push)))
        moved = (pushed - plain).norm(dim=-1)
        return Guided(
            label,
            strength,
            model.readout(plain, layout),
            model.readout(pushed, layout),
            moved[:, layout.patches].unflatten(-1, layout.grid),
            moved.norm(dim=-1) / plain.flatten(1).norm(dim=-1),
        )
