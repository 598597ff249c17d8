"""p = updates / all of them, or seconds / all of them: where a training stands, in which part of it, at which rates."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from transformers import TrainerCallback

from odevit.core.solver_config import SolverConfig
from odevit.train.solver_sampling import ConfigSampler

BETWEEN_WAITS = 8
"""Updates after which a run that counts seconds waits for the device: they are to be its seconds, not its queue's."""
LONGEST_UNSAVED = 0.2
"""Share of a training in phases, or of one that counts seconds, after which it is evaluated and saved."""
NO_END = 10**9
"""Updates of a run that counts seconds, as far as anyone needs to know."""


@dataclass(frozen=True)
class SchedulePhase:
    """A part of a training: how long it is, how fast it learns, and which ways it goes.

    Args:
        name: for logs and records.
        share: its share of the training.
        end: the progress at which it is over.
        learning_rate, muon_learning_rate: the highest rates, of AdamW and of Muon.
        warmup: the share of the part over which they rise; they fall as a cosine over the rest of it.
        draws: the way of each batch; None where there is none to choose.
        kind: parts of one kind minimise the same loss, so that one captured step serves them all.
        judged: the ways over which the score on the held-out images is averaged; None is the network's own.
        final_rate: the share of the highest rates that remains at its end.
        cycles: how often the cosine falls; it starts again from the highest rates at once (hard restarts).
    """

    name: str
    share: float
    end: float
    learning_rate: float
    muon_learning_rate: float
    warmup: float
    sampler: ConfigSampler | None = None
    kind: int = 0
    eval_configs: tuple[SolverConfig | None, ...] = (None,)
    final_rate: float = 0.0
    cycles: int = 1

    def height(self, progress: float) -> float:
        """Rates over their highest: f / warmup, then cosines from 1 to `final_rate`; f is the share that is over."""
        f = min(1.0, max(0.0, 1.0 - (self.end - progress) / self.share))
        if f < self.warmup:
            return f / self.warmup
        fallen = self.cycles * (f - self.warmup) / (1 - self.warmup)
        # The last cosine ends where the part does; it does not start again there.
        fallen = fallen % 1.0 if fallen < self.cycles else 1.0
        return self.final_rate + (1 - self.final_rate) * (1 + math.cos(math.pi * fallen)) / 2


class Schedule(LRScheduler):
    """The rates of every group by progress. Read once per update, so that rates, losses and ways change together.

    Seconds are those of training and evaluating; they are saved with a checkpoint, so that a resumed run goes on
    where it stood.

    Args:
        optimizer: the groups of Muon are those with a momentum; a `factor` of a group is one on its rates.
        parts: one after the other, from the progress 0 to 1.
        updates: of the whole training.
        seconds: of the whole training, which then ends by time; 0 counts updates.
        clock: gives the time in seconds.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        parts: Sequence[SchedulePhase],
        updates: int,
        seconds: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.parts, self.updates, self.seconds = parts, updates, seconds
        self.elapsed, self._clock, self._read = 0.0, clock, clock()
        super().__init__(optimizer)

    @property
    def progress(self) -> float:
        """p, from 0 to 1."""
        return min(1.0, self.elapsed / self.seconds if self.seconds else self.last_epoch / self.updates)

    @property
    def part(self) -> SchedulePhase:
        """Where p lies."""
        # 1e-9: shares such as 0.2 + 0.35 + 0.45 sum to 1 only nearly, and a border belongs to what comes after it.
        return next((part for part in self.parts if self.progress < part.end - 1e-9), self.parts[-1])

    def step(self, epoch: int | None = None) -> None:
        if self.seconds and torch.cuda.is_available() and self.last_epoch % BETWEEN_WAITS == 0:
            torch.cuda.synchronize()
        now = self._clock()
        self.elapsed, self._read = self.elapsed + now - self._read, now
        super().step()

    def get_lr(self) -> list[float | torch.Tensor]:
        part = self.part
        height = part.height(self.progress)
        return [
            group.get("factor", 1.0) * height * (part.muon_learning_rate if "momentum" in group else part.learning_rate)
            for group in self.optimizer.param_groups
        ]

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("last_epoch", "elapsed", "_step_count", "_last_lr")}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        vars(self).update(state_dict)
        self._read = self._clock()


class TimeLimit(TrainerCallback):
    """Ends a training whose time is over; its last weights are evaluated whenever that is.

    And so are those at every fifth of it, should nobody have looked since: epochs may be longer than the time, and
    what is not saved is lost to a crash.
    """

    def __init__(self) -> None:
        self.looked = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, lr_scheduler: Any = None, **kwargs: Any) -> None:
        self.looked = lr_scheduler.progress

    def on_step_end(self, args: Any, state: Any, control: Any, lr_scheduler: Any = None, **kwargs: Any) -> None:
        if lr_scheduler.progress >= 1.0:
            control.should_training_stop = True
        if control.should_training_stop or lr_scheduler.progress > self.looked + LONGEST_UNSAVED:
            control.should_evaluate = control.should_save = True

    def on_save(self, args: Any, state: Any, control: Any, lr_scheduler: Any = None, **kwargs: Any) -> None:
        self.looked = lr_scheduler.progress
