"""One field, three depths compared: x(T) of the equation, the end of a long recurrence, the rest point itself."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from odevit.core.image_model import ImageModel
from odevit.core.solution import Solution
from odevit.systems.equilibrium import EquilibriumDepth
from odevit.tokens import Logits, Tokens

FAR = 8
"""How many horizons the recurrence goes on for."""
NEAR = 1e-5
"""|step(x) - x| / |x| of a rest point that is compared with where a recurrence ends."""


@dataclass(frozen=True)
class View:
    """The answers under one meaning of depth."""

    logits: Logits
    evaluations: Tensor
    """Of the field, for each sample."""
    settled: bool
    """Whether the answer was reached: no failure of the solver, and for the equilibrium a rest point."""


@torch.no_grad()
def three_depths(model: ImageModel, x0: Tokens) -> dict[str, View]:
    """The same weights as an ODE, a recurrent network and an equilibrium model.

    - `ode`: x(T), T the model's own horizon, by an adaptive solver: the equation, and no discretisation of it.
    - `recurrent`: the model's own step, again and again, for eight horizons.
    - `equilibrium`: the fixed point of that step, by Anderson's method.

    Where there is an attractor, the last two agree; the first agrees as far as T is long and the steps are fine. A
    field that knows the time for ever has no rest point: then the third is where the second ends, and not settled.

    Args:
        model: in evaluation mode (see `untouched`).
        x0: embedded images, `model.embed(pixels)`.
    """
    own = model.solver_config
    accurate, fixed = ("dopri5", own.solver) if own.is_fixed else (own.solver, "exponential_euler")
    equation = model.depth(x0, own.replace(solver=accurate, steps=1))
    recurrence = model.depth(x0, own.replace(solver=fixed).times(FAR))
    if model.field.autonomous_from == math.inf:
        rest = replace(recurrence, failure="What moves for ever has no rest point.")
    else:  # around the field as it is: no copy of its weights
        rest = EquilibriumDepth(lambda: model.field, own.replace(solver=fixed), tolerance=NEAR)(x0)

    def view(solution: Solution) -> View:
        alike = torch.full((len(x0),), solution.stats.nfe, device=x0.device)
        evaluations = alike if solution.evaluations is None else solution.evaluations
        return View(model.readout(solution.state), evaluations, solution.ok)

    return {"ode": view(equation), "recurrent": view(recurrence), "equilibrium": view(rest)}
