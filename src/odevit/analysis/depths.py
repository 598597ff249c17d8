"""One field, three depths: x(T) of the equation, the end of a long recurrence, the rest point itself."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from odevit.analysis.subject import Subject
from odevit.depth import EquilibriumDepth
from odevit.shapes import Logits, Tokens
from odevit.solver import AdaptiveSolver, make_solver

FAR = 8
"""How many horizons the recurrence goes."""


@dataclass(frozen=True)
class View:
    """What one meaning of depth says.

    Args:
        logits: [batch, label].
        evaluations: of the field, for each sample.
        settled: whether the answer was reached: no failure of the solver, and for the equilibrium a rest point.
    """

    logits: Logits
    evaluations: Tensor
    settled: bool


@torch.no_grad()
def three_depths(subject: Subject, x0: Tokens) -> dict[str, View]:
    """The same weights as an ODE, a recurrent network and an equilibrium model.

    - `ode`: x(T), T the model's own horizon, by an adaptive solver: the equation, and no discretisation of it.
    - `recurrent`: the model's own step, again and again, eight horizons far.
    - `equilibrium`: the fixed point of that step, by Anderson's method.

    Where there is an attractor, the last two agree; the first agrees as far as T is long and the steps are fine.

    Args:
        subject: the model, in evaluation mode (see `untouched`).
        x0: embedded images, `subject.embed(pixels)`.
    """
    accurate = subject.solver if isinstance(make_solver(subject.solver), AdaptiveSolver) else "dopri5"
    fixed = "exponential_euler" if accurate == subject.solver else subject.solver
    equation = subject.solve(x0, solver=accurate, steps=1)
    recurrence = subject.solve(x0, solver=fixed, steps=FAR * subject.steps, horizon=FAR * subject.horizon)
    # Around the field as it is: no copy of its weights.
    rest = EquilibriumDepth(lambda: subject.field, solver=fixed, steps=subject.steps, horizon=subject.horizon)(x0)
    views = {"ode": equation, "recurrent": recurrence, "equilibrium": rest}
    return {
        name: View(
            logits=subject.logits(solution.state),
            evaluations=torch.full((len(x0),), solution.stats.nfe, device=x0.device)
            if solution.evaluations is None
            else solution.evaluations,
            settled=solution.ok,
        )
        for name, solution in views.items()
    }
