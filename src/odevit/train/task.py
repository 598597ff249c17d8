"""recipe -> network, data, batches, solvers: what differs from one kind of run to another."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar

import torch
from transformers import TrainerCallback

from odevit.core.solver_config import SolverConfig
from odevit.data.batches import Batches, make_batches
from odevit.data.images import DataSet
from odevit.errors import ConfigError, with_key_prefix
from odevit.train.evaluate import Score
from odevit.train.folder import RunFolder
from odevit.train.recipe import Recipe, TrainRecipe
from odevit.train.schedule import UNLIMITED, ConfigSampler, SchedulePhase, SolverSampler
from odevit.train.splits import WORKERS, evaluation_batches, resolve_device

R = TypeVar("R", bound=Recipe)


@dataclass(frozen=True)
class Process:
    """This process among the processes of a run, with torchrun's numbers."""

    device: torch.device
    rank: int = 0
    world: int = 1

    @classmethod
    def here(cls, device: str) -> Process:
        """From torchrun's environment variables; a single process without them."""
        chosen = resolve_device(device)
        if chosen.type == "cuda":
            chosen = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        return cls(chosen, int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))

    @property
    def is_main(self) -> bool:
        """Whether this process writes and prints."""
        return self.rank == 0

    def share(self, recipe: TrainRecipe) -> int:
        """Samples of one forward pass of this process."""
        parts = recipe.accumulate * self.world
        if recipe.batch_size % parts:
            raise ValueError(
                f"train.batch_size={recipe.batch_size} cannot be cut into {parts} equal parts "
                f"({recipe.accumulate} accumulated x {self.world} processes); change one of them"
            )
        return recipe.batch_size // parts


@dataclass
class Task(ABC, Generic[R]):
    """What a run trains and what it reports. `build` makes the parts; `odevit.train.runner.run` does everything else.

    A network takes a batch and a solver config, `network(**batch, solver_config=...)`, and gives an output with a
    `loss`; it is evaluated as an `ImageModel`, and saved with `save_pretrained`.
    """

    recipe: R
    data: DataSet = field(init=False)
    network: Any = field(init=False)
    batches: Batches = field(init=False)
    validation: Batches = field(init=False)
    sampler: ConfigSampler | None = field(init=False, default=None)
    """Gives solver, steps and horizon of each batch; None for a network without a choice."""
    phases: Sequence[SchedulePhase] = field(init=False, default=())
    """The phases of the training, where it has any."""
    callbacks: Sequence[TrainerCallback] = field(init=False, default=())
    few_shapes: bool = field(init=False, default=False)
    """Whether the field gets only a few shapes of tokens, each of them often."""
    has_idle_weights: bool = field(init=False, default=False)
    """Whether some weights have no gradient in some steps, which distributed training has to know."""

    card: ClassVar[str]
    """The template of its model card, within the package."""
    score_label: ClassVar[str] = "validation accuracy (%)"
    """What the best network is selected by, for the log and the axis of the learning curves."""

    @abstractmethod
    def build(self) -> None:
        """Load or make data, network, batches and sampler."""

    @cached_property
    def process(self) -> Process:
        """This process."""
        return Process.here(self.recipe.device)

    @property
    def model(self) -> Any:
        """What is saved: the network, or the part of it that is left after training."""
        return self.network

    @property
    def folder(self) -> RunFolder:
        """Where the run writes."""
        return RunFolder(self.recipe.folder)

    @property
    def schedule(self) -> Sequence[SchedulePhase]:
        """The phases, or the whole training as one phase if it ends by time; empty leaves the rates to the Trainer."""
        t = self.recipe.train
        if self.phases or not t.seconds:
            return self.phases
        rates = t.learning_rate, t.muon_learning_rate, t.warmup
        cycles = t.cycles if t.schedule == "cosine_with_restarts" else 1
        return [SchedulePhase("all", 1.0, 1.0, *rates, sampler=self.sampler, cycles=cycles)]

    def dry_run(self) -> None:
        """Raise before the training what would fail during it: here, time grids that the field cannot take."""
        if not self.model.depth.has_trajectory:
            return
        samplers: dict[str, ConfigSampler | None] = {"train.steps": self.sampler}
        samplers |= {f"phases.{phase.name}.solver_configs": phase.sampler for phase in self.phases}
        configs = {"the model's own settings": [self.model.solver_config]}
        configs |= {key: sampler.configs for key, sampler in samplers.items() if sampler}
        refused = [
            f"{key}, {solver_config}: {sentence}"
            for key, listed in configs.items()
            for solver_config in listed
            if solver_config.is_fixed  # adaptive solvers choose their steps, and end them at the field's knots
            for sentence in self.model.field.grid_problems(solver_config.edges)
        ]
        if refused:
            raise ConfigError("the recipe", refused)

    def before_step(self, progress: float, phase: SchedulePhase | None) -> None:
        """Called before every step with the share of the training that is over, and the phase of the step."""

    def rate_of(self, name: str) -> float:
        """Factor on the learning rate of a parameter of the network."""
        return 1.0

    def metrics(self, score: Score) -> dict[str, Any]:
        """Further numbers of the finished network, which its record keeps for every seed."""
        return {}

    def record_fields(self) -> dict[str, Any]:
        """Further fields of the record, such as the number of labels that were used."""
        return {"labels": len(self.data.train)}

    def summary(self, score: Score) -> str:
        """The last line of the output."""
        ranks = "  ".join(f"{name} {share:.2%}" for name, share in score.ranks.items())
        return f"test {ranks} of {score.images:,} images  nfe {score.nfe}  {score.milliseconds:.3f} ms/image"

    @property
    def updates(self) -> int:
        """Optimiser steps of the run."""
        t = self.recipe.train
        return UNLIMITED if t.seconds else t.updates or t.epochs * self._updates_per_epoch

    @property
    def updates_between_evaluations(self) -> int:
        """Optimiser steps from one evaluation to the next."""
        return min(self.updates, self.recipe.train.evaluate_every * self._updates_per_epoch)

    @property
    def _updates_per_epoch(self) -> int:
        return -(-len(self.batches) // self.recipe.train.accumulate)

    def _make_batches(self, data: DataSet) -> None:
        """Shuffled, augmented batches of one size to train on, and those of the held-out split to select on."""
        t, process = self.recipe.train, self.process
        where: dict[str, Any] = {"device": process.device, "rank": process.rank, "world": process.world}
        where["workers"] = WORKERS
        with with_key_prefix("train", ["batch_size"]):
            self.batches = make_batches(
                data.train,
                process.share(t),
                augmentation=self.recipe.data.augmentation,
                mean=data.mean,
                std=data.std,
                num_classes=data.num_classes,
                seed=self.recipe.seed,
                shuffle=True,
                drop_last=True,
                **where,
            )
        self.validation = evaluation_batches(data, "validation", **where)

    def _make_sampler(self, own: SolverConfig, hold: bool = False) -> SolverSampler:
        """What the recipe draws for a network with the settings `own`."""
        t = self.recipe.train
        return SolverSampler(
            own,
            steps=t.steps,
            horizons=t.horizons or [1.0],
            seed=self.recipe.seed,
            longest_step=t.longest_step,
            solvers=t.solvers,
            own_share=t.own_share,
            coarse=round(t.coarse_first * self.updates),
            hold=hold,
        )
