"""x_{n+1} = step(x_n) until done(x_n, x_{n+1}): each sample as far as it needs, and no further."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from odevit.field.dynamics import Field
from odevit.solver.base import FixedStepSolver
from odevit.solver.solution import Solution, Stats
from odevit.solver.stop import Moment, Stop


@torch.no_grad()
def solve_until(
    field: Field,
    x0: Tensor,
    *,
    solver: FixedStepSolver,
    steps: int,
    t1: float,
    stop: Stop,
    read: Callable[[Tensor], Tensor] | None = None,
) -> Solution:
    """x_{n+1} = step(x_n), at most N steps of T / N, for each sample until `stop` says that it is done.

    Samples that are done leave the batch, so that the others are all that is computed. Without gradients, and without
    dropout: the field has to be in evaluation mode.

    Args:
        field: f.
        x0: the states at 0.
        solver: how a step is made.
        steps, t1: N and T: a sample that is never done takes all of them.
        stop: the criterion.
        read: states to logits, for a criterion that asks the head.

    Returns:
        A `Solution` whose `evaluations` and `stop_times` are each sample's own; `time` and `stats` are those of the
        last sample to leave.
    """
    if field.training:
        raise ValueError("stop= is for evaluation, where each sample goes its own way; call model.eval() first")
    if stop.needs_logits and read is None:
        raise ValueError(
            f"stop={type(stop).__name__} looks at logits, and this model has no head; use stop='velocity', "
            "or OdeViTForImageClassification"
        )
    h, cost = t1 / steps, solver.evaluations(len(field.dynamics(x0[:1]).components))
    final, taken = x0.clone(), torch.zeros(len(x0), dtype=torch.long, device=x0.device)
    here = torch.arange(len(x0), device=x0.device)  # who is still on the way
    x, dynamics = x0, field.dynamics(x0)
    logits = [read(x0)] if stop.needs_logits and read is not None else []
    for n in range(1, steps + 1):
        before, x = x, solver.step(dynamics, x, (n - 1) * h, h).to(x.dtype)
        if logits and read is not None:
            logits = [*logits[-2:], read(x)]
        last = n == steps
        if n == 1 and not last:
            continue  # one step says nothing of where it leads
        done = torch.ones(len(x), dtype=torch.bool, device=x.device) if last else stop(Moment(h, before, x, logits))
        if not done.any():
            continue
        final[here[done]], taken[here[done]] = x[done], n
        stay = ~done
        here, x = here[stay], x[stay]
        if len(here) == 0:
            break
        logits = [each[stay] for each in logits]
        dynamics = field.dynamics(x0[here])
    most = int(taken.max())
    return Solution(
        state=final,
        time=most * h,
        stats=Stats(nfe=most * cost, steps=most),
        evaluations=taken * cost,
        stop_times=taken * h,
    )
