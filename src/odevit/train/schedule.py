"""p = updates / all of them, or seconds / all of them -> the phase of a training, its rates, the solver of a batch."""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from transformers import TrainerCallback

from odevit.core.base import SOLVERS, FixedStepSolver
from odevit.core.solver_config import SolverConfig
from odevit.errors import ConfigError, unknown_name

SYNC_INTERVAL = 8
"""Updates after which a run that counts seconds waits for the device, so that it does not count queued work."""
EVALUATION_INTERVAL = 0.2
"""Share of a training in phases, or of one that counts seconds, after which it is evaluated and saved."""
UNLIMITED = 10**9
"""Updates of a run that ends by time."""
OWN = "own"
PATTERN = re.compile(r"(own|\w+(?=:))(?::([1-9]\d*|\d+(?:\.\d+)?(?=x))(x?)(?::(\d+(?:\.\d+)?))?)?")


class ConfigSampler(Protocol):
    """Gives the solver, steps and horizon of each batch."""

    def draw(self, update: int) -> SolverConfig:
        """The settings of this batch."""

    @property
    def configs(self) -> list[SolverConfig]:
        """Everything that can be drawn."""


@dataclass(frozen=True)
class ListSampler:
    """One of a list of settings, drawn uniformly: a pure function of (seed, update)."""

    listed: tuple[SolverConfig, ...]
    seed: int = 0

    def draw(self, update: int) -> SolverConfig:
        return random.Random(f"{self.seed}:{update}").choice(self.listed)

    @property
    def configs(self) -> list[SolverConfig]:
        return list(dict.fromkeys(self.listed))


def parse_solver_config(text: str, own: SolverConfig) -> SolverConfig:
    """The settings that SOLVER:STEPS:HORIZONS names, for a model with the settings `own`.

    STEPS lead to the model's horizon: a number of them, or a multiple of the model's number, `2x`. HORIZONS, 1 unless
    given, continues with steps of the same size. `own` stands for the model's settings, or for its solver.
    """
    match = PATTERN.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text!r} names no solver and steps; expected SOLVER:STEPS, such as lie_trotter:12, or rk4:2x for twice "
            "the model's own steps, and lie_trotter:12:1.5 to go on to 1.5 of its horizons"
        )
    solver, steps, times, horizons = match.groups()
    fixed = [OWN, *(name for name, kind in SOLVERS.items() if issubclass(kind, FixedStepSolver))]
    if solver not in fixed:
        raise ValueError(f"{text!r}: {unknown_name('solver', solver, fixed)}")
    if steps is not None and float(steps) == 0:
        raise ValueError(f"{text!r} has no steps; expected at least one step")
    if float(horizons or 1) < 1:
        raise ValueError(f"{text!r} ends before the model's own horizon; expected a multiple of it, at least 1")
    count = own.steps if steps is None else max(1, round(float(steps) * (own.steps if times else 1)))
    return own.replace(None if solver == OWN else solver, count).stretched(float(horizons or 1))


@dataclass(frozen=True)
class SolverSampler:
    """(solver, N, T) ~ uniform(solvers x steps x horizons), with T / N <= longest_step; drawn once per batch.

    N is drawn first, then T from the horizons that N allows. An entry that is listed twice is drawn twice as often.
    For the first `coarse` updates nothing is drawn: they take the fewest steps to the shortest horizon, which cost
    least and are learned most easily.

    A pure function of (seed, update): every process and every accumulated part of a batch draws the same, and a
    resumed run draws what it would have drawn.

    Args:
        own: the model's own settings; they fill in whatever is not drawn.
        steps: numbers of solver steps; empty takes the model's own.
        horizons: multiples of the model's own horizon.
        seed: of the run.
        longest_step: largest T / N, so that few steps go with short horizons; 0 allows any.
        solvers: names of solvers; empty takes the model's own.
        own_share: share of the batches that take the model's own settings.
        coarse: number of updates before drawing begins.
        hold: whether N counts the steps to the model's own horizon, a longer one being reached by more steps of the
            same size (distillation, which holds the last target there).
    """

    own: SolverConfig
    steps: Sequence[int] = ()
    horizons: Sequence[float] = (1.0,)
    seed: int = 0
    longest_step: float = 0.0
    solvers: Sequence[str] = ()
    own_share: float = 0.0
    coarse: int = 0
    hold: bool = False

    def __post_init__(self) -> None:
        shortest = min(self.horizons) * self.own.horizon
        problems = [
            f"{steps} steps over the shortest horizon {shortest:g} are each longer than {self.longest_step:g}; "
            "drop them, or raise train.longest_step"
            for steps in self._steps
            if not self._horizons(steps)
        ]
        if problems:
            raise ConfigError("train.steps", problems)

    def draw(self, update: int) -> SolverConfig:
        """The settings of this batch."""
        if update < self.coarse:
            return self.coarsest
        generator = random.Random(f"{self.seed}:{update}")
        steps = generator.choice(self._steps)
        multiple = generator.choice(self._horizons(steps))
        # Solver and share are drawn last, so that recipes without them draw what they have always drawn.
        solver = generator.choice(self.solvers) if self.solvers else None
        takes_own = self.own_share > 0 and generator.random() < self.own_share
        return self.own if takes_own else self._config(solver, steps, multiple)

    @property
    def configs(self) -> list[SolverConfig]:
        """Everything that can be drawn."""
        solvers: Sequence[str | None] = self.solvers or [None]
        drawn = [
            self._config(solver, steps, multiple)
            for steps in self._steps
            for multiple in self._horizons(steps)
            for solver in solvers
        ]
        drawn = drawn if self.own_share < 1 else []
        always = [self.own] * (self.own_share > 0) + [self.coarsest] * (self.coarse > 0)
        return list(dict.fromkeys([*always, *drawn]))

    @property
    def coarsest(self) -> SolverConfig:
        """The fewest steps to the shortest horizon, with the first of the solvers."""
        return self._config(self.solvers[0] if self.solvers else None, min(self._steps), min(self.horizons))

    @property
    def _steps(self) -> Sequence[int]:
        return self.steps or [self.own.steps]

    def _horizons(self, steps: int) -> list[float]:
        # 1e-9: 18 / 12 must not fail by the last digit of a product.
        longest = self.longest_step + 1e-9 if self.longest_step else float("inf")
        return [multiple for multiple in self.horizons if multiple * self.own.horizon / steps <= longest]

    def _config(self, solver: str | None, steps: int, multiple: float) -> SolverConfig:
        if self.hold:
            return self.own.replace(solver, steps).stretched(max(1.0, multiple))
        return self.own.replace(solver, steps, multiple * self.own.horizon)


@dataclass(frozen=True)
class SchedulePhase:
    """A phase of a training: its length, its learning rates, and the solvers of its batches.

    Args:
        name: for logs and records.
        share: its share of the training.
        end: the progress at which it is over.
        learning_rate, muon_learning_rate: the highest rates, of AdamW and of Muon.
        warmup: the share of the phase over which they rise; they fall as a cosine over the rest of it.
        sampler: gives solver, steps and horizon of each batch; None for a network without a choice.
        kind: phases of one kind minimise the same loss, so that they share captured steps.
        eval_configs: the settings over which the score on the held-out images is averaged; None is the network's own.
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
        # The last cosine ends with the phase; it does not start again there.
        fallen = fallen % 1.0 if fallen < self.cycles else 1.0
        return self.final_rate + (1 - self.final_rate) * (1 + math.cos(math.pi * fallen)) / 2


class Schedule(LRScheduler):
    """The rates of every group by progress, which is read once per update: rates, loss and solver change together.

    Seconds are those of training and evaluation. They are saved with a checkpoint, so that a resumed run continues
    where it was.

    Args:
        optimizer: the groups of Muon are those with a momentum; a `factor` of a group multiplies its rates.
        phases: one after the other, from the progress 0 to 1.
        updates: of the whole training.
        seconds: of the whole training, which then ends by time; 0 counts updates.
        clock: gives the time in seconds.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        phases: Sequence[SchedulePhase],
        updates: int,
        seconds: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.phases, self.updates, self.seconds = phases, updates, seconds
        self.elapsed, self._clock, self._read = 0.0, clock, clock()
        super().__init__(optimizer)

    @property
    def progress(self) -> float:
        """p, from 0 to 1."""
        return min(1.0, self.elapsed / self.seconds if self.seconds else self.last_epoch / self.updates)

    @property
    def phase(self) -> SchedulePhase:
        """The phase of the next step."""
        # 1e-9: shares such as 0.2 + 0.35 + 0.45 sum to 1 only nearly, and a border belongs to the phase after it.
        return next((phase for phase in self.phases if self.progress < phase.end - 1e-9), self.phases[-1])

    def step(self, epoch: int | None = None) -> None:
        if self.seconds and torch.cuda.is_available() and self.last_epoch % SYNC_INTERVAL == 0:
            torch.cuda.synchronize()
        now = self._clock()
        self.elapsed, self._read = self.elapsed + now - self._read, now
        super().step()

    def get_lr(self) -> list[float | torch.Tensor]:
        phase = self.phase
        height = phase.height(self.progress)
        rates = {True: phase.muon_learning_rate, False: phase.learning_rate}
        return [group.get("factor", 1.0) * height * rates["momentum" in group] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("last_epoch", "elapsed", "_step_count", "_last_lr")}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        vars(self).update(state_dict)
        self._read = self._clock()


class TimeLimit(TrainerCallback):
    """Ends a training whose time is over, and evaluates and saves its last weights.

    It also evaluates and saves after every fifth of the training without an evaluation: epochs may be longer than the
    whole time, and a crash loses what is not saved.
    """

    def __init__(self) -> None:
        self.saved = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, lr_scheduler: Any = None, **kwargs: Any) -> None:
        self.saved = lr_scheduler.progress

    def on_step_end(self, args: Any, state: Any, control: Any, lr_scheduler: Any = None, **kwargs: Any) -> None:
        if lr_scheduler.progress >= 1.0:
            control.should_training_stop = True
        if control.should_training_stop or lr_scheduler.progress > self.saved + EVALUATION_INTERVAL:
            control.should_evaluate = control.should_save = True

    def on_save(self, args: Any, state: Any, control: Any, lr_scheduler: Any = None, **kwargs: Any) -> None:
        self.saved = lr_scheduler.progress
