"""da/dt = -a^T df/dx: gradients by integrating backwards in time, through torchdiffeq."""

from __future__ import annotations

import math
import warnings
from collections import Counter

import torch
from torch import Tensor, nn

from odevit.core.base import FixedStepSolver
from odevit.core.solution import Solution, Stats
from odevit.core.solve import DRIVERS, Driver, Problem
from odevit.errors import OdeVitWarning
from odevit.solvers.adaptive import Dopri5, adaptive_problems
from odevit.solvers.precision import current_autocast

MAX_BACKWARD_ERROR = 1e-3
"""The adjoint warns when its tolerance, times the growth of errors backwards in time, is larger."""
FIXED_STEP_ADJOINT = "adjoint=True is for adaptive solvers; use checkpoint=True with a fixed-step solver"


@DRIVERS.register("adjoint")
class Adjoint(Driver):
    """torchdiffeq's continuous adjoint, with `save`.

    No activations are kept: the backward pass integrates the state backwards in time, so the gradient belongs to
    another numerical solution than the forward pass. Where trajectories converge forwards they diverge backwards, and
    errors grow, see benchmarks/adjoint_error.json. Checkpointing a fixed-step solver is exact and costs little more.

    x0, the anchor and the parameters of a module get gradients. An equation that is no module is refused if it depends
    on anything else with a gradient, which torchdiffeq would drop silently.
    """

    def problems(self, problem: Problem) -> list[str]:
        if isinstance(problem.solver, FixedStepSolver):
            return [FIXED_STEP_ADJOINT]
        return adaptive_problems(self)

    def run(self, problem: Problem) -> Solution:
        """Integrate with torchdiffeq's Dopri5 and differentiate with its continuous adjoint."""
        field, x0, solver, save = problem.field, problem.x0, problem.solver, self.save
        dynamics, t0, t1, steps = problem.start(), problem.times[0], problem.times[-1], len(problem.times) - 1
        parameters = field.parameters() if isinstance(field, nn.Module) else None
        if not isinstance(solver, Dopri5):
            raise ValueError(
                f"the adjoint is that of torchdiffeq, which has no {type(solver).__name__}; use solver='dopri5', or "
                "checkpoint=True with a fixed-step solver"
            )
        growth = math.exp(min(dynamics.leak * abs(t1 - t0), 50.0))
        if dynamics.leak > 0 and solver.rtol * growth > MAX_BACKWARD_ERROR:
            warnings.warn(
                f"The adjoint integrates states backwards in time, where a leak of {dynamics.leak:g} makes errors grow "
                f"{growth:.3g} times on a horizon of {abs(t1 - t0):g}: with a tolerance of {solver.rtol:g}, gradients "
                "can be wrong. Use checkpoint=True (train.checkpointing=true) with a fixed-step solver, or a smaller "
                "tolerance",
                OdeVitWarning,
                stacklevel=3,
            )
        if save.attentions:
            raise ValueError("the adjoint keeps no graph, so attention maps have no gradient; pass adjoint=False")
        if parameters is None and dynamics.with_anchor(dynamics.anchor.detach())(x0.detach(), t0).requires_grad:
            raise ValueError(
                "the equation is a function or a Dynamics and uses parameters whose gradients the adjoint would lose; "
                "pass the nn.Module that owns them, or adjoint=False"
            )
        try:
            from torchdiffeq import odeint_adjoint
        except ImportError as error:
            raise ImportError(
                "adjoint=True needs torchdiffeq, which is not installed; pip install 'odevit[solvers]'"
            ) from error

        limit, count = solver.max_steps, Counter[str]()
        autocast = current_autocast(x0)  # for the backward pass as well

        class Function(torch.nn.Module):
            def forward(self, t: Tensor, x: Tensor) -> Tensor:
                count["nfe"] += 1
                with autocast:
                    return dynamics(x, float(t.detach())).to(x.dtype)

            def callback_accept_step(self, t: Tensor, x: Tensor, h: Tensor) -> None:
                count["accepted"] += 1

            def callback_reject_step(self, t: Tensor, x: Tensor, h: Tensor) -> None:
                count["rejected"] += 1

            def callback_step(self, t: Tensor, x: Tensor, h: Tensor) -> None:
                if count["accepted"] + count["rejected"] >= limit:
                    raise _MaxStepsError(float(t), x)

        saved = save.numbers(steps)
        numbers = sorted(saved | {0, steps})
        grid = torch.tensor([t0 + (t1 - t0) * n / steps for n in numbers], dtype=torch.float64, device=x0.device)
        # Without a leak the anchor has no gradient, and integrating one for it would cost as much as the state.
        anchor = [dynamics.anchor] if dynamics.leak else []
        tracked = [tensor for tensor in (*(parameters or ()), *anchor) if tensor.requires_grad]
        try:
            path = odeint_adjoint(
                Function(),
                x0,
                grid,
                rtol=solver.rtol,
                atol=solver.atol,
                method="dopri5",
                options={"min_step": solver.min_step * abs(t1 - t0)},
                adjoint_params=tuple(tracked),
            )
        except _MaxStepsError as stopped:
            failure = (
                f"Stopped at t = {stopped.t:g} of {t1:g} after max_steps = {limit} steps. "
                "Raise `max_steps` or loosen `rtol` and `atol`."
            )
            stats = Stats(count["nfe"], count["accepted"], count["rejected"])
            return Solution(stopped.x, stopped.t, stats, failure=failure)
        indices = [i for i, n in enumerate(numbers) if n in saved]
        return Solution(
            state=path[-1],
            time=t1,
            stats=Stats(count["nfe"], count["accepted"], count["rejected"]),
            states=save.detached(path[i] for i in indices),
            times=tuple(float(grid[i]) for i in indices),
        )


class _MaxStepsError(Exception):
    """Carries the last state out of torchdiffeq's loop."""

    def __init__(self, t: float, x: Tensor) -> None:
        super().__init__(t)
        self.t, self.x = t, x
