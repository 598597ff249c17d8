"""Everything that defines a training run: one dataclass, saved beside the weights. Hydra only fills it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, make_dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from odevit.data import Augmentation
from odevit.depth import DEPTHS
from odevit.errors import ConfigError, Expected, broken, number, unknown_name, whole
from odevit.model import PRESETS, OdeViTConfig
from odevit.solver import PENALTIES, SOLVERS, FixedStepSolver
from odevit.train.loss import Penalised

LOGGERS = ("tensorboard", "trackio", "wandb")
HELD_OUT = Expected("a share in (0, 1)", number(above=0, below=1).fine)
SHARE = Expected("a share in [0, 1]", lambda value: number(least=0).fine(value) and value <= 1)

# Every field of the model's configuration; None leaves the preset's value (write `none` for a real None).
ModelRecipe = make_dataclass(
    "ModelRecipe",
    [("preset", str, "digits")] + [(name, Any, None) for name in OdeViTConfig.own_fields()],
)
ModelRecipe.__doc__ = "A preset and the fields that differ from it."


@dataclass
class DataRecipe:
    """What to learn from. The fields are those of `load_data`."""

    source: str = "digits"
    """`digits`, a local folder (hub layout, or one folder per class), or a hub id."""
    image_size: int | None = None
    image_column: str | None = None
    label_column: str | None = None
    validation: float = 0.1
    """Share of the training split that is held out to select models on."""
    split_seed: int = 0
    skip_unreadable: bool = False
    resident_limit_gb: float = 4.0
    """Larger data sets are streamed through workers instead of being held on the device."""
    cache: str | None = None
    augmentation: Augmentation = field(default_factory=Augmentation)


@dataclass
class TrainRecipe(Penalised):
    """How to learn. Beside these keys there are the weight and the options of every penalty: `jasmin`, `jasmin_k`."""

    epochs: int = 30
    updates: int = 0
    """Optimiser steps after which training ends, whatever the epochs; 0 counts epochs."""
    batch_size: int = 128
    """Samples in one optimiser step, over all processes and accumulation steps together."""
    accumulate: int = 1
    optimizer: str = "adamw"
    """`adamw`, or `muon` for the matrices with AdamW for the rest."""
    learning_rate: float = 1e-3
    muon_learning_rate: float = 0.02
    weight_decay: float = 0.05
    muon_weight_decay: float = 0.0
    schedule: str = "cosine"
    """`cosine` or `cosine_with_restarts`."""
    cycles: int = 1
    warmup: float = 0.05
    """Share of the optimiser steps over which the learning rate rises."""
    clip: float = 1.0
    """Largest norm of the gradient; 0 does not clip."""
    precision: str = "fp32"
    """`fp32` or `bf16` (mixed: the state of the trajectory stays in fp32)."""
    compile: bool = False
    """Compile the components of the field."""
    capture: bool = False
    """Replay the forward and backward pass as CUDA graphs, one per way to integrate."""
    checkpointing: bool = False
    """Recompute steps in the backward pass instead of storing them."""
    ema: float = 0.0
    """Decay of the weight average that is evaluated and saved; 0 takes the weights themselves."""
    steps: list[int] = field(default_factory=list)
    """Numbers of solver steps, one drawn per batch; empty takes the model's own."""
    horizons: list[float] = field(default_factory=list)
    """Multiples of the model's horizon, one drawn per batch; empty is 1."""
    longest_step: float = 0.0
    """Largest horizon / steps that is drawn, so that few steps go with short horizons; 0 allows any."""
    solvers: list[str] = field(default_factory=list)
    """Names of solvers, one drawn per batch; empty takes the model's own."""
    own: float = 0.0
    """Share of the batches that take the model's own way, whatever could be drawn."""
    coarse_first: float = 0.0
    """Initial share of the training that takes the fewest of `steps` to the shortest of `horizons`: cheap."""
    evaluate_every: int = 1
    """Epochs between evaluations; a checkpoint is written after each."""
    patience: int = 0
    """Stop after this many evaluations without a better one; 0 never does."""
    log_every: int = 10
    """Optimiser steps between lines of the log."""
    workers: int = 2
    """Processes that decode images when the data is streamed."""


TRAIN_RULES = {
    **dict.fromkeys(("epochs", "batch_size", "accumulate", "cycles", "evaluate_every", "log_every"), whole(1)),
    "updates": Expected("0, or the number of optimiser steps", whole().fine),
    **dict.fromkeys(("own", "coarse_first"), SHARE),
    **dict.fromkeys(("warmup", "ema"), Expected("a number in [0, 1)", number(least=0, below=1).fine)),
    "steps": Expected("whole numbers, at least 1 each", lambda steps: all(map(whole(1).fine, steps))),
    "horizons": Expected("multiples > 0", lambda horizons: all(map(number(above=0).fine, horizons))),
    "longest_step": Expected("a time, or 0 for any", number(least=0).fine),
}


def one_of(*names: str) -> Expected:
    """One of a few words."""
    return Expected(" or ".join(names), lambda value: value in names)


def choice(key: str, value: str, known: Iterable[str]) -> list[str]:
    """A sentence for a name that is not among the known ones."""
    return [] if value in known else [f"{key}: {unknown_name(key.rpartition('.')[2], value, known)}"]


@dataclass
class Recipe:
    """A run: which model, which data, how to learn, and where to put the result."""

    name: str = "digits"
    out: str = ""
    """The folder of the run; runs/NAME-SEED unless given."""
    seed: int = 0
    device: str = "auto"
    """`auto`, `cpu`, `cuda`."""
    resume: bool = False
    """Continue the run in `out` where it was interrupted."""
    overwrite: bool = False
    """Replace what is in `out`."""
    init_from: str | None = None
    """A folder or hub id with weights to start from."""
    teacher: str = ""
    """A pretrained ViT, by folder or hub id: the one to distil, or with `head_only` the one to give a new head."""
    head_only: bool = False
    """Train only a new head on `teacher`, as the paper does for its teachers."""
    loggers: list[str] = field(default_factory=list)
    """In addition to metrics.jsonl: `tensorboard`, `trackio`, `wandb`."""
    model: ModelRecipe = field(default_factory=ModelRecipe)  # type: ignore[valid-type]
    data: DataRecipe = field(default_factory=DataRecipe)
    train: TrainRecipe = field(default_factory=TrainRecipe)

    @property
    def folder(self) -> Path:
        """Where the run lives."""
        return Path(self.out or f"runs/{self.name.replace('/', '-')}-{self.seed}")

    def model_settings(self) -> dict[str, Any]:
        """The keyword arguments of `OdeViTConfig`: the preset, then what the recipe says."""
        given = asdict(self.model)
        settings = dict(PRESETS[given.pop("preset")])
        for name, value in given.items():
            if value is not None:
                settings[name] = None if value == "none" else value
        return settings

    def check(self) -> None:
        """Raise one error with everything that is wrong."""
        problems = self.problems()
        if problems:
            raise ConfigError("the recipe", problems)

    def problems(self) -> list[str]:
        """Everything that is wrong, as sentences."""
        t = self.train
        fixed = [name for name, kind in SOLVERS.items() if issubclass(kind, FixedStepSolver)]
        problems = [
            *choice("train.optimizer", t.optimizer, ("adamw", "muon")),
            *choice("train.schedule", t.schedule, ("cosine", "cosine_with_restarts")),
            *choice("train.precision", t.precision, ("fp32", "bf16")),
            *choice("device", self.device.split(":")[0], ("auto", "cpu", "cuda")),
            *(problem for name in t.solvers for problem in choice("train.solvers", name, fixed)),
            *(problem for logger in self.loggers for problem in choice("loggers", logger, LOGGERS)),
            *(f"train.{problem}" for problem in broken(t, TRAIN_RULES)),
            *t.penalty_problems("train"),
            *HELD_OUT.problem("data.validation", self.data.validation),
        ]
        missing = [logger for logger in self.loggers if logger in LOGGERS and find_spec(logger) is None]
        problems += [f"loggers: {logger} is not installed; pip install {logger}" for logger in missing]
        if t.accumulate >= 1 and t.batch_size % t.accumulate:
            problems.append(f"train.accumulate={t.accumulate} does not divide train.batch_size={t.batch_size}")
        if self.resume and self.overwrite:
            problems.append("resume=true and overwrite=true contradict each other; choose one")
        if self.device.startswith("cuda") and not torch.cuda.is_available():
            problems.append("device=cuda, but there is no CUDA device; use device=cpu or device=auto")
        if self.head_only and not self.teacher:
            problems.append("head_only=true needs a model to put the head on; pass teacher=FOLDER or a hub id")
        if self.head_only and t.weights:
            problems.append(f"head_only=true trains no trajectory; set train.{next(iter(t.weights))}=0")
        if t.capture and t.accumulate > 1:
            problems.append("train.capture=true replays whole steps and does not accumulate; set train.accumulate=1")
        return problems + self._model_problems()

    def _model_problems(self) -> list[str]:
        """What is wrong with the model, or cannot be trained."""
        if problem := PRESETS.problem(self.model.preset):  # type: ignore[attr-defined]
            return [f"model.preset: {problem}"]
        try:
            name = OdeViTConfig(**self.model_settings()).depth
        except ConfigError as error:
            return [f"model: {problem}" for problem in error.problems]
        depth, problems = DEPTHS[name], []
        if not depth.trainable:
            others = [other for other, kind in DEPTHS.items() if kind.trainable and kind.shares_field]
            problems.append(
                f"model.depth={name} has no gradient; train with model.depth={' or '.join(others)}, and ask the "
                f"trained model with depth={name!r}"
            )
        if not depth.shares_field:
            problems += [
                f"model.depth={name} has no field that could carry its last state on; set train.{penalty}=0"
                for penalty in self.train.weights
                if PENALTIES[penalty].is_terminal()
            ]
        return problems
