"""done(x_n, x_{n+1}): when a sample has its answer and more steps would be wasted on it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from odevit.core.base import Dynamics, FixedStepSolver, History
from odevit.core.solution import Solution, Stats
from odevit.core.solve import DRIVERS, Driver, Problem, integrate, plan_steps
from odevit.registry import Registry
from odevit.tokens import Logits

STOPS: Registry[type[Stop]] = Registry("stop")


@dataclass(frozen=True)
class StopState:
    """What a criterion sees after a step of length h, for the samples that are still on their way.

    `logits` are what the head says of the last states, the newest last: after the first step two, then three, up to as
    many `readings` as the criterion wants. Empty unless it asks for them.
    """

    h: float
    before: Tensor
    after: Tensor
    logits: Sequence[Tensor] = ()


class Stop(ABC):
    """done(moment) [batch], True where a sample may leave.

    A new criterion is one subclass and one line `@STOPS.register(name)`. It is asked after every step but the first.
    """

    needs_logits: ClassVar[bool] = True
    readings: int = 3
    """How many logits are kept for it."""

    @abstractmethod
    def __call__(self, state: StopState) -> Tensor:
        """Which samples are done."""


@STOPS.register("velocity")
@dataclass(frozen=True)
class VelocityStop(Stop):
    """|x_{n+1} - x_n| / (h |x_{n+1}|) < tolerance: the state has come to rest. Never asks the head."""

    tolerance: float = 0.02

    needs_logits = False

    def __call__(self, state: StopState) -> Tensor:
        moved = (state.after - state.before).flatten(1).norm(dim=1)
        return moved < self.tolerance * abs(state.h) * state.after.flatten(1).norm(dim=1)


@STOPS.register("cosine")
@dataclass(frozen=True)
class CosineStop(Stop):
    """1 - cos(x_{n+1}, x_n) < tolerance: the state no longer turns. Never asks the head."""

    tolerance: float = 1e-3

    needs_logits = False

    def __call__(self, state: StopState) -> Tensor:
        old, new = (F.normalize(state.flatten(1).float(), dim=1) for state in (state.before, state.after))
        # |a - b|^2 / 2 = 1 - a.b for unit vectors; the right side would lose the small numbers that matter here.
        return (new - old).square().sum(dim=1) / 2 < self.tolerance


@STOPS.register("entropy")
@dataclass(frozen=True)
class EntropyStop(Stop):
    """|H(p_{n+1}) - H(p_n)| < tolerance: the last step made the prediction no surer."""

    tolerance: float = 1e-3

    def __call__(self, state: StopState) -> Tensor:
        logs = (logits.float().log_softmax(-1) for logits in state.logits[-2:])
        old, new = (-(log.exp() * log).sum(dim=-1) for log in logs)
        return (new - old).abs() < self.tolerance


@STOPS.register("argmax")
@dataclass(frozen=True)
class ArgmaxStop(Stop):
    """argmax p_{n+1} = argmax p_n = ... = argmax p_{n+1-steps}: the answer has stood for so many steps."""

    steps: float = 5

    @property
    def readings(self) -> int:  # type: ignore[override]
        return math.ceil(self.steps) + 1

    def __call__(self, state: StopState) -> Tensor:
        answers = torch.stack([logits.argmax(dim=-1) for logits in state.logits])
        return (answers == answers[-1]).all(dim=0) & (len(answers) >= self.readings)


@STOPS.register("kl")
@dataclass(frozen=True)
class KlStop(Stop):
    """KL(p_{n+1} || p_n) < tolerance: the last step hardly changed the prediction."""

    tolerance: float = 0.005

    def __call__(self, state: StopState) -> Tensor:
        old, new = (logits.float().log_softmax(-1) for logits in state.logits[-2:])
        return (new.exp() * (new - old)).sum(dim=-1) < self.tolerance


@STOPS.register("bound")
@dataclass(frozen=True)
class BoundStop(Stop):
    """tolerance 2 q / (1 - q) |z_{n+1} - z_n| < z_(1) - z_(2), q = |z_{n+1} - z_n| / |z_n - z_{n-1}|.

    Banach's estimate after the fact: where steps shrink by a factor q, all that are still to come move the logits z by
    no more than q / (1 - q) times the last one. When twice that (one class rises, the other falls) is less than the gap
    between the two likeliest classes, the answer cannot change any more. q is measured from the last two steps, in the
    largest component; it is a bound as far as the steps go on shrinking by it.
    """

    tolerance: float = 1.0

    def __call__(self, state: StopState) -> Tensor:
        if len(state.logits) < 3:
            return torch.zeros(len(state.after), dtype=torch.bool, device=state.after.device)
        oldest, old, new = (logits.float() for logits in state.logits)
        last, previous = (new - old).abs().amax(dim=-1), (old - oldest).abs().amax(dim=-1)
        first, second = new.topk(2, dim=-1).values.unbind(dim=-1)
        # last^2 / (previous - last), without dividing by zero: no shrinking, no bound.
        return (last < previous) & (self.tolerance * 2 * last.square() < (first - second) * (previous - last))


def make_stop(stop: str | Stop) -> Stop:
    """A criterion from its name, with its default or another tolerance: "kl", "kl:0.01"."""
    if isinstance(stop, Stop):
        return stop
    name, colon, tolerance = stop.partition(":")
    criterion = STOPS[name]
    if not colon:
        return criterion()
    try:
        value = float(tolerance)
    except ValueError:
        value = -1.0
    if not value > 0:
        raise ValueError(f"stop={stop!r}; expected a tolerance > 0 after the colon, such as {name}:0.01")
    return criterion(value)  # type: ignore[call-arg]


def stop_problems(stop: Stop, *, kept: bool, training: bool, headless: bool) -> list[str]:
    """Why samples cannot stop early in such a call, as sentences."""
    name = f"stop={STOPS.name_of(type(stop))!r}"
    refusals = [
        (kept, "with stop= samples leave at different times: nothing can be kept, no save, no penalties"),
        (training, "stop= is for evaluation, where every sample stops on its own; call model.eval() first"),
        (
            headless and stop.needs_logits,
            f"{name} reads logits, and there is no head to ask; use stop='velocity', or a model with a head",
        ),
    ]
    return [sentence for refused, sentence in refusals if refused]


@DRIVERS.register("early_exit")
class EarlyExit(Driver):
    """The loop step by step, with the samples that are not done."""

    def problems(self, problem: Problem) -> list[str]:
        name, field = type(problem.solver).__name__, problem.field
        fixed, kept = isinstance(problem.solver, FixedStepSolver), self.save.steps or self.save.attentions
        training = isinstance(field, nn.Module) and field.training
        refusals = [
            (
                self.adjoint and fixed,
                "adjoint=True is for adaptive solvers; use checkpoint=True with a fixed-step solver",
            ),
            (not fixed, f"stop= asks after every step, and {name} chooses its own; use fixed steps, say 'heun'"),
        ]
        problems = [sentence for refused, sentence in refusals if refused]
        stop, headless = make_stop(self.stop), self.readout is None
        return problems + stop_problems(stop, kept=bool(kept or self.penalties), training=training, headless=headless)

    @torch.no_grad()
    def run(self, problem: Problem) -> Solution:
        solver, x, times = problem.solver, problem.x0, problem.times
        history: History = ()
        assert isinstance(solver, FixedStepSolver)  # others are refused
        dynamics = problem.start()
        plan = plan_steps(solver, dynamics, times, problem.grid)
        active = ActiveBatch(make_stop(self.stop), self.readout, x)
        for step in plan:
            before = x
            x, _, history = integrate(solver, dynamics, x, [step], history=history)
            state = StopState(step.h, before, x)
            x, dynamics, history = active.after(step.n + 1, step.n + 1 == len(plan), state, dynamics, history)
            if len(x) == 0:
                break
        steps, spent = active.steps, list(accumulate(step.nfe for step in plan))
        most = int(steps.max())
        return Solution(
            state=active.final,
            time=times[most],
            stats=Stats(nfe=spent[most - 1], steps=most),
            evaluations=steps.new_tensor([0, *spent])[steps],
            stop_times=torch.tensor(times, device=steps.device)[steps] - times[0],
        )


class ActiveBatch:
    """The samples that are not done, and the final states and step counts of the others.

    Samples that are done leave the batch, so that only the others are computed.
    """

    def __init__(self, stop: Stop, readout: Callable[[Tensor], Logits] | None, x0: Tensor) -> None:
        self.stop = stop
        self.readout = readout if stop.needs_logits else None
        self.final = x0.clone()
        self.steps = torch.zeros(len(x0), dtype=torch.long, device=x0.device)
        self.samples = torch.arange(len(x0), device=x0.device)
        self.logits = [] if self.readout is None else [self.readout(x0)]

    def after(
        self, n: int, last: bool, state: StopState, dynamics: Dynamics, history: History
    ) -> tuple[Tensor, Dynamics, History]:
        """Take out the samples that are done after step `n`; the states that remain, their equation and history."""
        x = state.after
        if self.readout is not None:
            self.logits = [*self.logits, self.readout(x)][-self.stop.readings :]
        if last:
            done = torch.ones(len(x), dtype=torch.bool, device=x.device)
        elif n == 1:  # one step alone shows no convergence
            return x, dynamics, history
        else:
            done = self.stop(replace(state, logits=self.logits))
        if not done.any():
            return x, dynamics, history
        leaving, stay = self.samples[done], ~done
        self.final[leaving], self.steps[leaving] = x[done], n
        self.samples = self.samples[stay]
        self.logits = [logits[stay] for logits in self.logits]
        kept = tuple((time, slope[stay]) for time, slope in history)
        return x[stay], dynamics.with_anchor(dynamics.anchor[stay]), kept
