"""done(x_n, x_{n+1}): stopping criteria, and a loop in which each sample stops on its own."""

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
from odevit.solvers.adjoint import FIXED_STEP_ADJOINT
from odevit.tokens import Logits

STOPS: Registry[type[Stop]] = Registry("stop")


@dataclass(frozen=True)
class StopState:
    """The argument of a criterion: the states before and after a step of length h, of the samples that still run.

    `logits` are the logits of the last states, the newest last: two after the first step, then three, at most
    `num_logits` of the criterion. Empty if the criterion needs none.
    """

    h: float
    before: Tensor
    after: Tensor
    logits: Sequence[Tensor] = ()


class Stop(ABC):
    """done(state) [batch], True where a sample stops.

    A new criterion is a subclass with `@STOPS.register(name)`. It is called after every step except the first.
    """

    needs_logits: ClassVar[bool] = True
    num_logits: int = 3
    """How many of the last logits it gets."""

    @abstractmethod
    def __call__(self, state: StopState) -> Tensor:
        """Which samples stop."""


@STOPS.register("velocity")
@dataclass(frozen=True)
class VelocityStop(Stop):
    """|x_{n+1} - x_n| / (h |x_{n+1}|) < tolerance: the state hardly moves. Needs no logits."""

    tolerance: float = 0.02

    needs_logits = False

    def __call__(self, state: StopState) -> Tensor:
        moved = (state.after - state.before).flatten(1).norm(dim=1)
        return moved < self.tolerance * abs(state.h) * state.after.flatten(1).norm(dim=1)


@STOPS.register("cosine")
@dataclass(frozen=True)
class CosineStop(Stop):
    """1 - cos(x_{n+1}, x_n) < tolerance: the state hardly turns. Needs no logits."""

    tolerance: float = 1e-3

    needs_logits = False

    def __call__(self, state: StopState) -> Tensor:
        old, new = (F.normalize(state.flatten(1).float(), dim=1) for state in (state.before, state.after))
        # |a - b|^2 / 2 = 1 - a.b for unit vectors; the right side would lose the small numbers that matter here.
        return (new - old).square().sum(dim=1) / 2 < self.tolerance


@STOPS.register("entropy")
@dataclass(frozen=True)
class EntropyStop(Stop):
    """|H(p_{n+1}) - H(p_n)| < tolerance: the last step hardly changed the entropy of the prediction."""

    tolerance: float = 1e-3

    def __call__(self, state: StopState) -> Tensor:
        logs = (logits.float().log_softmax(-1) for logits in state.logits[-2:])
        old, new = (-(log.exp() * log).sum(dim=-1) for log in logs)
        return (new - old).abs() < self.tolerance


@STOPS.register("argmax")
@dataclass(frozen=True)
class ArgmaxStop(Stop):
    """argmax p_{n+1} = argmax p_n = ... = argmax p_{n+1-steps}: the class did not change for `steps` steps."""

    steps: float = 5

    @property
    def num_logits(self) -> int:  # type: ignore[override]
        return math.ceil(self.steps) + 1

    def __call__(self, state: StopState) -> Tensor:
        classes = torch.stack([logits.argmax(dim=-1) for logits in state.logits])
        return (classes == classes[-1]).all(dim=0) & (len(classes) >= self.num_logits)


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

    Banach's a-posteriori estimate: if steps shrink by a factor q, all later steps together move the logits z by at most
    q / (1 - q) times the last step. When twice that (one class rises, the other falls) is less than the gap between the
    two likeliest classes, the predicted class cannot change. q is measured from the last two steps, in the largest
    component; the bound holds as long as later steps shrink by it.
    """

    tolerance: float = 1.0

    def __call__(self, state: StopState) -> Tensor:
        if len(state.logits) < 3:
            return torch.zeros(len(state.after), dtype=torch.bool, device=state.after.device)
        oldest, old, new = (logits.float() for logits in state.logits)
        last, previous = (new - old).abs().amax(dim=-1), (old - oldest).abs().amax(dim=-1)
        first, second = new.topk(2, dim=-1).values.unbind(dim=-1)
        # Multiplied by (previous - last), to avoid a division by zero. Without shrinking there is no bound.
        return (last < previous) & (self.tolerance * 2 * last.square() < (first - second) * (previous - last))


def make_stop(stop: str | Stop) -> Stop:
    """A criterion from its name, with its default tolerance or a given one: "kl", "kl:0.01"."""
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


def stop_problems(stop: Stop, *, recording: bool, training: bool, has_head: bool) -> list[str]:
    """Why samples cannot stop early in such a call, as sentences."""
    problems = []
    if recording:
        problems.append("with stop=, samples stop at different times; save and penalties are not possible, omit them")
    if training:
        problems.append("stop= is for evaluation; call model.eval() first")
    if stop.needs_logits and not has_head:
        name = STOPS.name_of(type(stop))
        problems.append(
            f"stop={name!r} needs logits, but there is no head; use stop='velocity', or a model with a head"
        )
    return problems


@DRIVERS.register("early_exit")
class EarlyExit(Driver):
    """The loop, one step at a time, on the samples that still run."""

    def problems(self, problem: Problem) -> list[str]:
        problems = []
        if not isinstance(problem.solver, FixedStepSolver):
            name = type(problem.solver).__name__
            problems.append(f"stop= needs fixed steps, and {name} is adaptive; use a fixed-step solver, such as 'heun'")
        elif self.adjoint:
            problems.append(FIXED_STEP_ADJOINT)
        return problems + stop_problems(
            make_stop(self.stop),
            recording=bool(self.save.steps or self.save.attentions or self.penalties),
            training=isinstance(problem.field, nn.Module) and problem.field.training,
            has_head=self.readout is not None,
        )

    @torch.no_grad()
    def run(self, problem: Problem) -> Solution:
        solver, x, times = problem.solver, problem.x0, problem.times
        history: History = ()
        assert isinstance(solver, FixedStepSolver)  # see `problems`
        dynamics = problem.start()
        plan = plan_steps(solver, dynamics, times, problem.grid)
        active = ActiveBatch(make_stop(self.stop), self.readout, x)
        for step in plan:
            before = x
            x, _, history = integrate(solver, dynamics, x, [step], history=history)
            state = StopState(step.h, before, x)
            x, dynamics, history = active.remove_done(step.n + 1, step.n + 1 == len(plan), state, dynamics, history)
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
    """The samples that still run, and the final states and step counts of the others, which are not computed."""

    def __init__(self, stop: Stop, readout: Callable[[Tensor], Logits] | None, x0: Tensor) -> None:
        self.stop = stop
        self.readout = readout if stop.needs_logits else None
        self.final = x0.clone()
        self.steps = torch.zeros(len(x0), dtype=torch.long, device=x0.device)
        self.samples = torch.arange(len(x0), device=x0.device)
        self.logits = [] if self.readout is None else [self.readout(x0)]

    def remove_done(
        self, n: int, last: bool, state: StopState, dynamics: Dynamics, history: History
    ) -> tuple[Tensor, Dynamics, History]:
        """Remove the samples that stop after step `n`; the remaining states, their equation and history."""
        x = state.after
        if self.readout is not None:
            self.logits = [*self.logits, self.readout(x)][-self.stop.num_logits :]
        if last:
            done = torch.ones(len(x), dtype=torch.bool, device=x.device)
        elif n == 1:  # convergence needs two steps
            return x, dynamics, history
        else:
            done = self.stop(replace(state, logits=self.logits))
        if not done.any():
            return x, dynamics, history
        stopped, running = self.samples[done], ~done
        self.final[stopped], self.steps[stopped] = x[done], n
        self.samples = self.samples[running]
        self.logits = [logits[running] for logits in self.logits]
        history = tuple((time, slope[running]) for time, slope in history)
        return x[running], dynamics.with_anchor(dynamics.anchor[running]), history
