"""What comes back from a solve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from odevit.solver.way import Way
from odevit.tokens import AttentionMap


@dataclass(frozen=True)
class Stats:
    """What a solve cost.

    Args:
        nfe: evaluations of the field. A splitting that evaluates one component more often than another counts the
            larger number.
        steps: steps that were accepted.
        rejected: steps that an adaptive solver tried and threw away.
    """

    nfe: int
    steps: int
    rejected: int = 0


@dataclass(frozen=True)
class Solution:
    """x(t1), what was asked to be kept, what it cost, and whether it can be trusted.

    Args:
        state: the final state; after a failure, the last one reached.
        time: the time of `state`.
        stats: evaluations and steps.
        states, times: the states asked for and their times.
        attentions: the attention maps, one for each evaluation, when asked for.
        penalties: what each penalty came to: its mean over time, and its cost at the end.
        failure: why an adaptive solver stopped early, or an equilibrium was not found.
        evaluations, stop_times: per sample, where samples stopped on their own; None where all went together.
        way: how it was integrated; None for what has no solver, such as a stack of layers.
    """

    state: Tensor
    time: float
    stats: Stats
    states: tuple[Tensor, ...] = ()
    times: tuple[float, ...] = ()
    attentions: tuple[AttentionMap, ...] = ()
    penalties: Mapping[str, Tensor] = field(default_factory=dict)
    failure: str | None = None
    evaluations: Tensor | None = None
    stop_times: Tensor | None = None
    way: Way | None = None

    @property
    def ok(self) -> bool:
        """Whether the end was reached with finite numbers. Looks at the state, so it waits for the device."""
        return self.failure is None and bool(torch.isfinite(self.state).all())

    @property
    def status(self) -> str:
        """The outcome as a sentence, with a remedy where there is one."""
        if self.failure is not None:
            return self.failure
        if not self.ok:
            return (
                f"The state at t = {self.time:g} is not finite after {self.stats.steps} steps. "
                "Take more steps, a shorter horizon, or a solver that treats the leak exactly."
            )
        return f"Reached t = {self.time:g} in {self.stats.steps} steps and {self.stats.nfe} evaluations."
