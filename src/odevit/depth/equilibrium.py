"""x* = step(x*): depth as the rest point that a trajectory comes to."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from odevit.depth.meaning import DEPTHS, Depth, refuse
from odevit.field.dynamics import Field
from odevit.solver import FixedStepSolver, Save, Solution, Solver, Stats, Way, anderson, solve
from odevit.tokens import Tokens

WARM_UP = 6
"""Steps along the trajectory, to the horizon, before the search begins.

A field may have several rest points. The one that is meant is the one whose basin the image lies in; a few coarse steps
of the model's own lead there, and Anderson's method then finds the bottom.
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
    does so a little beside it, and the distance falls with the length of the step. Another solver names another map:
    solver="exponential_euler" gives the rest point of the equation itself.

    It is a deep equilibrium model (Bai et al. 2019) with the weights of an ODE: where trajectories have come to rest,
    the same checkpoint gives the same answers. Inference only; train with depth="ode".
    """

    trainable = False
    shares_field = True

    def __init__(self, make_field: Callable[[], Field], way: Way) -> None:
        super().__init__(make_field, way)
        self.field = make_field()

    def choose(self, solver: str | Solver | None, steps: int | None, horizon: float | None) -> Way:
        """Another map to iterate, its step as long as the model's own; `steps` is the most that the search takes."""
        if horizon is not None:
            refuse("an equilibrium", [f"horizon={horizon} was given, but a rest point has none; leave it out"])
        most = SEARCH if steps is None else steps
        return Way(self.way.solver if solver is None else solver, most, most * self.way.step)

    @torch.no_grad()
    def forward(self, x0: Tokens, way: Way | None = None, **options: Any) -> Solution:
        """The rest point of one step of `way`, for each sample; `way.steps` is the most that the search takes."""
        way = way or self.choose(None, None, None)
        self._refuse(way, options)
        approach = solve(self.field, x0, solver=self.way.method, steps=WARM_UP, t1=self.way.horizon)
        method = way.method
        assert isinstance(method, FixedStepSolver)  # others are refused

        def step(x: Tensor, samples: Tensor) -> Tensor:
            return method.step(self.field.dynamics(x0[samples]), x, self.way.horizon, way.step).to(x.dtype)

        rest = anderson(step, approach.state, iterations=way.steps)
        cost = method.evaluations(len(self.field.dynamics(x0[:1]).components))
        evaluations = rest.evaluations * cost + approach.stats.nfe
        restless = int((rest.residual > RESTLESS).sum())
        failure = (
            f"No rest point was found for {restless} of {len(x0)} samples; their state is the one with the smallest "
            "velocity on the way. See where they go with depth='ode' and a long horizon."
        )
        return Solution(
            state=rest.state,
            time=math.inf,
            stats=Stats(nfe=int(evaluations.max()), steps=int(rest.evaluations.max())),
            evaluations=evaluations,
            failure=failure if restless else None,
            way=way,
        )

    def describe(self) -> str:
        return "the rest point of dx/dt = G(x) + F(x) - leak (x - x0)"

    def export_problem(self, way: Way) -> str | None:
        return "the search for a rest point has no fixed graph, it goes on until one is found; export with depth='ode'"

    def _refuse(self, way: Way, options: dict[str, Any]) -> None:
        problems = [
            f"{method.__name__} makes no map of one step; pass solver='exponential_euler', which makes one"
            for method in {type(self.way.method), type(way.method)}
            if not issubclass(method, FixedStepSolver)
        ]
        if self.field.training:
            problems.append("there is no gradient through the search; call model.eval(), and train with depth='ode'")
        keep = Save.parse(options.get("save"))
        if keep.steps or keep.attentions or any(options.get(name) for name in ("penalties", "adjoint", "stop")):
            problems.append("save, penalties, adjoint and stop belong to a trajectory; leave them out, or depth='ode'")
        refuse("an equilibrium", problems)
