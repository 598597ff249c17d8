"""x* = step(x*): depth as the rest point that a trajectory comes to."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from odevit.depth.base import AS_CONFIGURED, DEPTHS, Depth, Integration
from odevit.errors import ConfigError
from odevit.field.dynamics import Field
from odevit.shapes import Tokens
from odevit.solver import FixedStepSolver, Save, Solution, Stats, make_solver, solve
from odevit.solver.anderson import anderson

WARM_UP = 6
"""Steps along the trajectory, to the horizon, before the search begins.

A field may have several rest points. The one that is meant is the one whose basin the image lies in; a few coarse steps
of the model's own go there, and Anderson's method then finds the bottom.
"""
SEARCH = 60
"""Evaluations after which the search ends."""
RESTLESS = 1e-2
"""|g(x) - x| / |x| above which a state counts as not at rest."""


@DEPTHS.register("equilibrium")
class EquilibriumDepth(Depth):
    """x* = step(x*), by Anderson's method: where the trajectory would end if it never stopped.

    `step` is one step of the model's own solver, with its own length: x* is what the model comes to when it is given
    more and more of its steps. Runge-Kutta and exponential methods stand still exactly where f(x*) = 0; a splitting
    does a little beside it, and the distance falls with the length of the step. Another solver names another map:
    solver="exponential_euler" gives the rest point of the equation itself.

    It is a deep equilibrium model (Bai et al. 2019) with the weights of an ODE: where trajectories have come to rest,
    the same checkpoint gives the same answers. Inference only; train with depth="ode".
    """

    def __init__(self, make_field: Callable[[], Field], *, solver: str, steps: int, horizon: float) -> None:
        super().__init__(make_field, solver=solver, steps=steps, horizon=horizon)
        self.field = make_field()

    @torch.no_grad()
    def forward(self, x0: Tokens, how: Integration = AS_CONFIGURED) -> Solution:
        """The rest point of each sample; `how.steps` is the largest number of steps that the search may try."""
        self._check(how)
        approach = solve(self.field, x0, solver=self._method(AS_CONFIGURED), steps=WARM_UP, t1=self.horizon)
        method, h = self._method(how), self.horizon / self.steps
        cost = method.evaluations(len(self.field.dynamics(x0[:1]).components))

        def step(x: Tensor, samples: Tensor) -> Tensor:
            return method.step(self.field.dynamics(x0[samples]), x, self.horizon, h).to(x.dtype)

        found = anderson(step, approach.state, iterations=how.steps or SEARCH)
        evaluations = found.evaluations * cost + approach.stats.nfe
        restless = int((found.residual > RESTLESS).sum())
        return Solution(
            state=found.state,
            time=math.inf,
            stats=Stats(nfe=int(evaluations.max()), steps=int(found.evaluations.max())),
            evaluations=evaluations,
            failure=None if restless == 0 else self._restless(restless, len(x0)),
        )

    def _method(self, how: Integration) -> FixedStepSolver:
        """Whose step is iterated."""
        method = make_solver(self.solver if how.solver is None else how.solver)
        if isinstance(method, FixedStepSolver):
            return method
        raise ConfigError(
            "an equilibrium",
            [f"{type(method).__name__} makes no map of one step; pass solver='exponential_euler', which needs one"],
        )

    def _restless(self, count: int, samples: int) -> str:
        return (
            f"No rest point was found for {count} of {samples} samples; their state is the one with the smallest "
            "velocity on the way. See where they go with depth='ode' and a long horizon."
        )

    def _check(self, how: Integration) -> None:
        kept = Save.parse(how.save)
        problems = []
        if self.field.training:
            problems.append("there is no gradient through the search; call model.eval(), and train with depth='ode'")
        if how.horizon is not None:
            problems.append(f"horizon={how.horizon} was given, but a rest point has none; leave it out")
        if kept.steps or kept.attentions or how.penalties or how.adjoint or how.stop is not None:
            problems.append("save, penalties, adjoint and stop belong to a trajectory; leave them out, or depth='ode'")
        if problems:
            raise ConfigError("an equilibrium", problems)
