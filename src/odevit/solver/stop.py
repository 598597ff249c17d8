"""done(x_n, x_{n+1}): when a sample has its answer and more steps would be wasted on it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from odevit.field.dynamics import Dynamics
from odevit.registry import Registry
from odevit.tokens import Logits

STOPS: Registry[type[Stop]] = Registry("stop")


@dataclass(frozen=True)
class Moment:
    """What a criterion sees after a step of length h, for the samples that are still on their way.

    `logits` are what the head says of the last states, the newest last: after the first step two, then three. Empty
    unless the criterion asks for them.
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

    @abstractmethod
    def __call__(self, moment: Moment) -> Tensor:
        """Which samples are done."""


@STOPS.register("velocity")
@dataclass(frozen=True)
class VelocityStop(Stop):
    """|x_{n+1} - x_n| / (h |x_{n+1}|) < tolerance: the state has come to rest. Never asks the head."""

    tolerance: float = 0.02

    needs_logits = False

    def __call__(self, moment: Moment) -> Tensor:
        moved = (moment.after - moment.before).flatten(1).norm(dim=1)
        return moved < self.tolerance * abs(moment.h) * moment.after.flatten(1).norm(dim=1)


@STOPS.register("kl")
@dataclass(frozen=True)
class KlStop(Stop):
    """KL(p_{n+1} || p_n) < tolerance: the last step hardly changed the prediction."""

    tolerance: float = 0.005

    def __call__(self, moment: Moment) -> Tensor:
        old, new = (logits.float().log_softmax(-1) for logits in moment.logits[-2:])
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

    def __call__(self, moment: Moment) -> Tensor:
        if len(moment.logits) < 3:
            return torch.zeros(len(moment.after), dtype=torch.bool, device=moment.after.device)
        oldest, old, new = (logits.float() for logits in moment.logits)
        last, previous = (new - old).abs().amax(dim=-1), (old - oldest).abs().amax(dim=-1)
        first, second = new.topk(2, dim=-1).values.unbind(dim=-1)
        # last^2 / (previous - last), without dividing by zero: no shrinking, no bound.
        return (last < previous) & (self.tolerance * 2 * last.square() < (first - second) * (previous - last))


def make_stop(stop: str | Stop) -> Stop:
    """A criterion from its name, with its default or another tolerance: "kl", "kl:0.01"."""
    if isinstance(stop, Stop):
        return stop
    name, colon, number = stop.partition(":")
    criterion = STOPS[name]
    if not colon:
        return criterion()
    try:
        tolerance = float(number)
    except ValueError:
        tolerance = -1.0
    if not tolerance > 0:
        raise ValueError(f"stop={stop!r}; expected a tolerance > 0 after the colon, such as {name}:0.01")
    return criterion(tolerance)  # type: ignore[call-arg]


class Departures:
    """Which samples are still under way, and with which state and after how many steps the others left.

    Samples that are done leave the batch, so that only the others are computed.
    """

    def __init__(self, stop: Stop, read: Callable[[Tensor], Logits] | None, x0: Tensor, steps: int, h: float) -> None:
        self.stop, self.steps, self.h = stop, steps, h
        self.read = read if stop.needs_logits else None
        self.final = x0.clone()
        self.taken = torch.zeros(len(x0), dtype=torch.long, device=x0.device)
        self.present = torch.arange(len(x0), device=x0.device)
        self.logits = [] if self.read is None else [self.read(x0)]

    def after(self, n: int, before: Tensor, x: Tensor, dynamics: Dynamics) -> tuple[Tensor, Dynamics]:
        """Let go whoever is done after step `n`: the states that stay, and their equation."""
        if self.read is not None:
            self.logits = [*self.logits[-2:], self.read(x)]
        if n == self.steps:
            done = torch.ones(len(x), dtype=torch.bool, device=x.device)
        elif n == 1:  # one step says nothing of where it leads
            return x, dynamics
        else:
            done = self.stop(Moment(self.h, before, x, self.logits))
        if not done.any():
            return x, dynamics
        leaving, stay = self.present[done], ~done
        self.final[leaving], self.taken[leaving] = x[done], n
        self.present = self.present[stay]
        self.logits = [logits[stay] for logits in self.logits]
        return x[stay], dynamics.anchored(dynamics.anchor[stay])
