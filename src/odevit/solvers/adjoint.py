"""da/dt = -a^T df/dx: gradients by integrating backwards in time, through torchdiffeq."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from odevit.core.base import Dynamics, FixedStepSolver, Solver
from odevit.core.solution import SaveAt, Solution, Stats
from odevit.core.solve import DRIVERS, Driver, Problem
from odevit.errors import OdeVitWarning
from odevit.solvers.adaptive import Dopri5
from odevit.solvers.precision import precision_now

DIVERGENCE_LIMIT = 1e-3
"""Tolerances times what a leak makes of them on the way back, from which on gradients are doubtful."""


@DRIVERS.register("adjoint")
class Adjoint(Driver):
    """torchdiffeq's continuous adjoint, with `save`."""

    def problems(self, problem: Problem) -> list[str]:
        fixed = isinstance(problem.solver, FixedStepSolver)
        refusals = [
            (fixed, "adjoint=True is for adaptive solvers; use checkpoint=True with a fixed-step solver"),
            (
                self.checkpoint and not fixed,
                "checkpoint=True is for fixed-step solvers; use adjoint=True with solver='dopri5'",
            ),
            (
                self.penalties and not fixed,
                "penalties are accumulated on a fixed grid; use a fixed-step solver such as 'heun'",
            ),
        ]
        return [sentence for refused, sentence in refusals if refused]

    def run(self, problem: Problem) -> Solution:
        field, times = problem.field, problem.times
        parameters = field.parameters() if isinstance(field, nn.Module) else None
        span = (times[0], times[-1], len(times) - 1)
        return integrate_with_adjoint(problem.start(), problem.x0, problem.solver, *span, self.save, parameters)


def integrate_with_adjoint(
    dynamics: Dynamics,
    x0: Tensor,
    solver: Solver,
    t0: float,
    t1: float,
    stops: int,
    save: SaveAt,
    parameters: Iterable[Tensor] | None,
) -> Solution:
    """Integrate with torchdiffeq's Dopri5 and differentiate with its continuous adjoint.

    Keeps no activations, but follows the state backwards in time, and the gradient is that of another numerical
    solution than the one that was computed. Where trajectories come together on the way there, they part on the way
    back, and errors with them: see benchmarks/adjoint_error.json. Checkpointing a fixed-step solver costs little more
    and is exact.

    Only x0, the anchor and `parameters` get gradients. Where these are not known, None, an equation that depends on
    anything else with a gradient is refused: torchdiffeq would lose it without a word.
    """
    if not isinstance(solver, Dopri5):
        raise ValueError(
            f"the adjoint is torchdiffeq's and was asked for with {type(solver).__name__}, which it does not have; "
            "use solver='dopri5', or checkpoint=True with a fixed-step solver"
        )
    grown = math.exp(min(dynamics.leak * abs(t1 - t0), 50.0))
    if dynamics.leak > 0 and solver.rtol * grown > DIVERGENCE_LIMIT:
        warnings.warn(
            f"The adjoint follows states backwards in time, where a leak of {dynamics.leak:g} makes errors grow "
            f"{grown:.3g} times on a horizon of {abs(t1 - t0):g}: to a tolerance of {solver.rtol:g}, gradients can be "
            "wrong altogether. Use checkpoint=True (train.checkpointing=true) with a fixed-step solver, or a smaller "
            "tolerance",
            OdeVitWarning,
            stacklevel=3,
        )
    if save.attentions:
        raise ValueError(
            "the adjoint keeps no graph, so attention maps would have no gradient; drop adjoint=True to get them"
        )
    if parameters is None and dynamics.with_anchor(dynamics.anchor.detach())(x0.detach(), t0).requires_grad:
        raise ValueError(
            "the equation is a function or the dynamics of a trajectory, and depends on parameters whose gradients the "
            "adjoint would lose; pass the nn.Module that owns them, or drop adjoint=True"
        )
    try:
        from torchdiffeq import odeint_adjoint
    except ImportError as error:
        raise ImportError(
            "adjoint=True needs torchdiffeq, which is not installed; pip install 'odevit[solvers]'"
        ) from error

    limit, count = solver.max_steps, Counter[str]()
    precision = precision_now(x0)  # for the way back as well

    class Function(torch.nn.Module):
        def forward(self, t: Tensor, x: Tensor) -> Tensor:
            count["nfe"] += 1
            with precision:
                return dynamics(x, float(t.detach())).to(x.dtype)

        def callback_accept_step(self, t: Tensor, x: Tensor, h: Tensor) -> None:
            count["accepted"] += 1

        def callback_reject_step(self, t: Tensor, x: Tensor, h: Tensor) -> None:
            count["rejected"] += 1

        def callback_step(self, t: Tensor, x: Tensor, h: Tensor) -> None:
            if count["accepted"] + count["rejected"] >= limit:
                raise _GaveUpError(float(t), x)

    wanted = save.numbers(stops)
    chosen = sorted(wanted | {0, stops})
    grid = torch.tensor([t0 + (t1 - t0) * n / stops for n in chosen], dtype=torch.float64, device=x0.device)
    # Without a leak nothing leads back to the anchor, and to carry its gradient along would cost as much as the state.
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
    except _GaveUpError as gave_up:
        failure = (
            f"Stopped at t = {gave_up.t:g} of {t1:g} after max_steps = {limit} steps. "
            "Raise `max_steps` or loosen `rtol` and `atol`."
        )
        stats = Stats(count["nfe"], count["accepted"], count["rejected"])
        return Solution(gave_up.x, gave_up.t, stats, failure=failure)
    saved = [i for i, n in enumerate(chosen) if n in wanted]
    return Solution(
        state=path[-1],
        time=t1,
        stats=Stats(count["nfe"], count["accepted"], count["rejected"]),
        states=save.detached(path[i] for i in saved),
        times=tuple(float(grid[i]) for i in saved),
    )


class _GaveUpError(Exception):
    """Carries the last state out of torchdiffeq's loop."""

    def __init__(self, t: float, x: Tensor) -> None:
        super().__init__(t)
        self.t, self.x = t, x
