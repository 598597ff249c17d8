"""x(t1), what was kept, what it cost, and whether it succeeded."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from odevit.core.solver_config import SolverConfig
from odevit.errors import IntegrationError, IntegrationWarning
from odevit.tokens import AttentionMap, Pixels


@dataclass(frozen=True)
class SaveAt:
    """What to keep; nothing is kept unless asked.

    Args:
        steps: the steps whose states are kept, 0 being the start and N the end of N steps; "all" keeps N + 1 states.
        attentions: whether every attention map is kept, one for each evaluation; turns fused attention off.
        detach: whether what is kept is cut off from the graph.
    """

    steps: tuple[int, ...] | str = ()
    attentions: bool = False
    detach: bool = False

    @classmethod
    def parse(cls, save: SaveAt | str | Iterable[int] | None) -> SaveAt:
        """`None`, "all", a sequence of step numbers, or a `SaveAt`."""
        if isinstance(save, SaveAt):
            return save
        if isinstance(save, str) and save != "all":
            raise ValueError(f"save={save!r}; expected 'all', a sequence of step numbers, or a SaveAt(...)")
        return cls(save if isinstance(save, str) else tuple(() if save is None else save))

    def also(self, *, states: bool, attentions: bool) -> SaveAt:
        """The same, and every state, or every attention map."""
        return replace(self, steps="all" if states else self.steps, attentions=self.attentions or attentions)

    def numbers(self, steps: int) -> frozenset[int]:
        """The step numbers to keep out of 0..`steps`."""
        if isinstance(self.steps, str):
            return frozenset(range(steps + 1))
        outside = [step for step in self.steps if not 0 <= step <= steps]
        if outside:
            raise ValueError(
                f"save asks for the steps {outside}, but this solve has steps 0 to {steps}; "
                "pass numbers in that range or raise `steps`"
            )
        return frozenset(self.steps)

    def detached(self, tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
        """States or maps as they are kept: with their graph, or without."""
        return tuple(tensor.detach() if self.detach else tensor for tensor in tensors)


@dataclass(frozen=True)
class Stats:
    """What a solve cost: `nfe` evaluations of the field, and steps; an adaptive solver may have rejected some.

    A splitting that evaluates one component more often than another counts the larger number.
    """

    nfe: int
    steps: int
    rejected: int = 0


@dataclass(frozen=True)
class Solution:
    """The result of a solve.

    Args:
        state, time: the final state and its time; after a failure, the last one reached.
        states, times: the states that were kept, and their times.
        spent: the evaluations up to each of them; empty where steps are not fixed.
        attentions: the attention maps, one for each evaluation, if they were kept.
        penalties: the value of each penalty: its mean over time plus its cost at the end.
        costs: what the depth itself adds to the loss in training, weights included.
        notice: a remark on an answer that was reached, such as tokens that did not halt.
        failure: why an adaptive solver stopped early, or why an equilibrium was not found.
        evaluations, stop_times: per sample, with early exit; None otherwise.
        residual: per sample, |step(x) - x| / |x| of an equilibrium; None for other depths.
        unsettled: per sample, whether it has not converged or was cut short; None where that is not defined.
        solver_config: how it was integrated; None without a solver, such as for a stack of layers.
    """

    state: Tensor
    time: float
    stats: Stats
    states: tuple[Tensor, ...] = ()
    times: tuple[float, ...] = ()
    spent: tuple[int, ...] = ()
    attentions: tuple[AttentionMap, ...] = ()
    penalties: Mapping[str, Tensor] = field(default_factory=dict)
    costs: Mapping[str, Tensor] = field(default_factory=dict)
    notice: str | None = None
    failure: str | None = None
    evaluations: Tensor | None = None
    stop_times: Tensor | None = None
    residual: Tensor | None = None
    unsettled: Tensor | None = None
    solver_config: SolverConfig | None = None

    @property
    def ok(self) -> bool:
        """Whether the end was reached with finite numbers. Looks at the state, so it waits for the device."""
        return self.failure is None and bool(torch.isfinite(self.state).all())

    def count_unsettled(self) -> Tensor:
        """How many samples have not converged; all of them after a failure."""
        if self.unsettled is not None:
            return self.unsettled.sum()
        return torch.tensor(0 if self.failure is None else len(self.state))

    def require(self, subject: str) -> None:
        """Raise a ValueError if the end was not reached, or is not finite."""
        if not self.ok:
            raise ValueError(f"{subject}: {self.status}")

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
        if self.residual is not None:
            spent = f"after {self.stats.nfe} evaluations"
            if self.notice is not None:
                return f"Not all at rest {spent}: {self.notice}"
            return f"At rest {spent}, with residuals up to {float(self.residual.max()):.2g}."
        reached = f"Reached t = {self.time:g} in {self.stats.steps} steps and {self.stats.nfe} evaluations."
        return reached if self.notice is None else f"{reached} {self.notice}"


FAILURES = ("raise", "warn", "ignore")
"""What to do when an integration fails; None is `raise` in training and `warn` in evaluation."""


def check_solution(solution: Solution, pixels: Pixels, on_failure: str | None, training: bool) -> None:
    """Warn, or raise, when a trajectory did not reach its end, or not with finite numbers.

    Looking at numbers waits for the device and breaks a graph, so it is done once, at the end, and not in a graph that
    is compiled, exported or captured; "ignore" skips it. What a solver reports of itself costs nothing.
    """
    if on_failure not in (None, *FAILURES):
        raise ValueError(f"on_failure={on_failure!r}; expected one of {', '.join(map(repr, FAILURES))}, or None")
    if on_failure == "ignore" or (solution.failure is None and not has_values(solution.state)):
        return
    if solution.failure is None and bool(torch.isfinite(solution.state).all()):
        return
    bad = ~torch.isfinite(pixels).flatten(1).all(dim=1)
    if has_values(pixels) and bad.any():
        raise ValueError(
            f"pixel_values has NaN or infinity in the images {bad.nonzero().flatten().tolist()[:10]} of the batch; "
            "expected finite numbers. Look at how those images were decoded and normalised (a standard deviation of 0?)"
        )
    if on_failure == "raise" or (on_failure is None and training):
        remedy = " In training, also lower the learning rate or clip gradients." if training else ""
        raise IntegrationError(f"the integration failed: {solution.status}{remedy}")
    message = f"the integration failed, and what follows from it is no answer: {solution.status}"
    warnings.warn(f"{message} Pass on_failure='raise' to stop here.", IntegrationWarning, stacklevel=2)


def has_values(tensor: Tensor) -> bool:
    """Whether the numbers of a tensor can be looked at: not while a graph is made, nor within vmap or jvp."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or tensor.is_meta or in_transform():
        return False
    return not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def in_transform() -> bool:
    """Whether a function transform (jvp, vmap) is running, whose tensors have neither storage nor values."""
    return torch._C._functorch.peek_interpreter_stack() is not None
