"""Everything that defines a training run: one dataclass, saved beside the weights. Hydra only fills it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, make_dataclass, replace
from functools import reduce
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

from odevit.core.base import DEPTHS, SOLVERS, FixedStepSolver
from odevit.core.configuration_odevit import OdeViTConfig
from odevit.core.solver_config import MOST_STEPS
from odevit.data.augment.policy import Augmentation
from odevit.errors import (
    FRACTION,
    POSITIVE_FRACTION,
    ConfigError,
    Expected,
    integer,
    list_of,
    prefix_keys,
    real,
    unknown_name,
    validate,
    writable,
)
from odevit.hf.presets import PRESETS
from odevit.hub import local_path_problem
from odevit.solvers.penalties import PENALTIES
from odevit.train.loss import Penalised
from odevit.train.recipe_keys import given_keys

AUTO = "auto"
LOGGERS = ("tensorboard", "trackio", "wandb")
SAMPLING_KEYS = ("steps", "horizons", "longest_step", "solvers", "own_share", "coarse_first")
"""The keys of `train` that sample solvers. They belong to a system: each has those of its own file or none."""
MODEL_KEYS = ("model", "depth", "system")
"""The keys that describe a model."""
HELD_OUT = Expected("a share in (0, 1)", real(above=0, below=1).accepts)

MODEL_FIELDS = (
    *("image_size", "tokenizer", "patch_size", "tokenizer_channels", "use_cls_token", "num_register_tokens", "pooling"),
    *(
        "hidden_size",
        "num_attention_heads",
        "mlp_ratio",
        "norm",
        "final_norm",
        "bias",
        "attention",
        "attention_options",
    ),
    *("depth", "depth_options", "solver", "steps", "horizon", "grid", "tolerance", "leak", "time_conditioned"),
    *("knots", "knot_times", "blend", "vector_knots", "vector_blend", "weights_over_time", "rank", "basis"),
    *("attention_dropout", "hidden_dropout", "output_dropout"),
)
"""The fields of `OdeViTConfig` that recipes set; the others keep their defaults, or come with `init_from`."""

# None leaves the preset's value (write `none` for a real None).
ModelRecipe = make_dataclass("ModelRecipe", [("preset", str, "digits")] + [(name, Any, None) for name in MODEL_FIELDS])
ModelRecipe.__doc__ = "A preset and the fields that differ from it."


@dataclass
class DataRecipe:
    """The data. The fields are those of `load_data`."""

    source: str = "digits"
    """`digits`, a local folder (hub layout, or one folder per class), or a hub id."""
    image_column: str | None = None
    label_column: str | None = None
    validation: float = 0.1
    """Share of the training split that is held out to select models on."""
    share: float = 1.0
    """Share of each class of the rest that is used for training."""
    skip_unreadable: bool = False
    resident_limit_gb: float = 4.0
    """Larger data sets are streamed through worker processes; smaller ones are held on the device."""
    augmentation: Augmentation = field(default_factory=Augmentation)


@dataclass
class TrainRecipe(Penalised):
    """How to train. In addition, every penalty has a key for its weight and keys for its options: `jasmin_k`."""

    epochs: int = 30
    updates: int = 0
    """Ends the training after this many optimiser steps; 0 counts epochs."""
    seconds: float = 0.0
    """Ends the training after this many seconds of training and evaluation; 0 counts epochs."""
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
    layer_decay: float = 1.0
    """With `teacher`: factor on the learning rate from each layer to the one before it."""
    head_first: float = 0.0
    """With `teacher`: initial share of the training in which only the new head is trained."""
    clip: float = 1.0
    """Largest norm of the gradient; 0 does not clip."""
    precision: str = "fp32"
    """`fp32` or `bf16` (mixed: the state of the trajectory stays in fp32); `auto` is bf16 on CUDA."""
    compile: bool | str = False
    """Compile the components of the field, and a teacher's blocks; `auto` does on CUDA."""
    capture: bool | str = False
    """Replay the forward and backward pass as CUDA graphs, one per solver config; `auto` does where it can."""
    checkpointing: bool = False
    """Recompute steps in the backward pass instead of storing them."""
    adjoint: bool = False
    """Gradients from the adjoint equation, whose memory does not grow with the steps; for model.solver=dopri5."""
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
    own_share: float = 0.0
    """Share of the batches that use the model's own solver, steps and horizon."""
    coarse_first: float = 0.0
    """Initial share of the training with the fewest of `steps` to the shortest of `horizons`, which is cheap."""
    evaluate_every: int = 1
    """Epochs between evaluations; a checkpoint is written after each."""
    log_every: int = 10
    """Optimiser steps between lines of the log."""

    def on(self, device: str) -> TrainRecipe:
        """The same recipe with a value for every `auto`, by the kind of device."""
        cuda = device == "cuda"
        best = {
            "precision": "bf16" if cuda else "fp32",
            "compile": cuda,
            "capture": cuda and self.accumulate == 1,
        }
        return replace(self, **{name: value for name, value in best.items() if getattr(self, name) == AUTO})  # type: ignore[arg-type]


SEED = integer(0, 2**32 - 1)  # as far as every library's generator goes
DATA_RULES = {
    "validation": HELD_OUT,
    "share": POSITIVE_FRACTION,
    "resident_limit_gb": real(minimum=0),
}
TRAIN_RULES = {
    **dict.fromkeys(("epochs", "batch_size", "accumulate", "cycles", "evaluate_every", "log_every"), integer(1)),
    **dict.fromkeys(("learning_rate", "muon_learning_rate", "weight_decay", "muon_weight_decay"), real(minimum=0)),
    "clip": Expected("the largest norm of the gradient, or 0 for any", real(minimum=0).accepts),
    "updates": Expected("0, or the number of optimiser steps", integer().accepts),
    "seconds": Expected("0, or a time in seconds", real(minimum=0).accepts),
    **dict.fromkeys(("compile", "capture"), Expected("true, false or auto", lambda v: v in (True, False, AUTO))),
    **dict.fromkeys(("own_share", "coarse_first", "head_first"), FRACTION),
    "layer_decay": Expected("a factor in (0, 1]", POSITIVE_FRACTION.accepts),
    **dict.fromkeys(("warmup", "ema"), Expected("a number in [0, 1)", real(minimum=0, below=1).accepts)),
    "steps": list_of(integer(1, MOST_STEPS)),
    "horizons": list_of(real(above=0, maximum=1000)),
    "longest_step": Expected("a time, or 0 for any", real(minimum=0).accepts),
}


def choice(key: str, value: str, known: Iterable[str]) -> list[str]:
    """A sentence for a name that is not among the known ones."""
    return [] if value in known else [f"{key}: {unknown_name(key.rpartition('.')[2], value, known)}"]


def device_problems(name: str) -> list[str]:
    """A sentence for a device that has no such name, or is not there."""
    kind, colon, number = name.partition(":")
    if kind not in ("auto", "cpu", "cuda") or (colon and not number.isdecimal()):
        return [f"device={name!r}; expected auto, cpu or cuda"]
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        return [f"device={name}, but there is no such CUDA device; use device=cpu or device=auto"]
    return []


def train_problems(prefix: str, recipe: TrainRecipe) -> list[str]:
    """A sentence for every problem of `train`; the keys begin with `prefix`."""
    fixed = [name for name, kind in SOLVERS.items() if issubclass(kind, FixedStepSolver)]
    problems = [
        *choice(f"{prefix}.optimizer", recipe.optimizer, ("adamw", "muon")),
        *choice(f"{prefix}.schedule", recipe.schedule, ("cosine", "cosine_with_restarts")),
        *choice(f"{prefix}.precision", recipe.precision, (AUTO, "fp32", "bf16")),
        *(problem for name in recipe.solvers for problem in choice(f"{prefix}.solvers", name, fixed)),
        *(f"{prefix}.{problem}" for problem in validate(recipe, TRAIN_RULES)),
        *recipe.penalty_problems(prefix),
    ]
    if recipe.accumulate >= 1 and recipe.batch_size % recipe.accumulate:
        problems.append(
            f"{prefix}.accumulate={recipe.accumulate} does not divide {prefix}.batch_size={recipe.batch_size}"
        )
    return problems


@dataclass
class Recipe:
    """A run: which model, which data, how to learn, and where to put the result."""

    root: ClassVar[str] = "recipe"
    """The file in odevit/conf that has its defaults."""
    verb: ClassVar[str] = "train"
    unused: ClassVar[dict[str, str]] = dict.fromkeys(
        ("model.bias", "model.num_register_tokens"),
        "odevit distill sets it for compare=true; use OdeViTConfig in Python",
    )
    """Keys that have no effect here or that are not to be typed, and why."""

    name: str = "digits"
    """Name of the run; with data=FOLDER, that of the folder."""
    out: str = ""
    """The folder of the run; runs/NAME-SEED unless given."""
    seed: int = 0
    """Seed of the initial weights, the order of the images and their augmentation."""
    device: str = "auto"
    """`auto`, `cpu`, `cuda`."""
    resume: bool = False
    """Continue the run in `out` where it was interrupted."""
    overwrite: bool = False
    """Replace what is in `out`."""
    init_from: str | None = None
    """A folder or hub id with weights to start from."""
    teacher: str = ""
    """Folder or hub id of a pretrained ViT: the one to distil, or in `odevit train` the one to fine-tune."""
    head_only: bool = False
    """Train only a new head on `teacher`, as the paper does for its teachers, and freeze the rest."""
    cache: str | None = None
    """A folder for decoded images, so that the next start does not decode them again."""
    loggers: list[str] = field(default_factory=list)
    """In addition to metrics.jsonl: `tensorboard`, `trackio`, `wandb`."""
    model: ModelRecipe = field(default_factory=ModelRecipe)  # type: ignore[valid-type]
    data: DataRecipe = field(default_factory=DataRecipe)
    train: TrainRecipe = field(default_factory=TrainRecipe)

    def __post_init__(self) -> None:
        # A shell does not expand ~ after an equals sign.
        self.teacher = os.path.expanduser(self.teacher)
        self.init_from = self.init_from and os.path.expanduser(self.init_from)

    @classmethod
    def expand(cls, overrides: Sequence[str]) -> list[str]:
        """The overrides with those that they imply: with `teacher=`, training is fine-tuning."""
        given = given_keys(overrides).keys()
        implied = ["train=finetune"] if "teacher" in given and not given & {"train", "experiment"} else []
        return [*implied, *overrides]

    @classmethod
    def unused_overrides(cls, given: Mapping[str, str]) -> dict[str, str]:
        """Keys that have no effect beside the given ones, and why; known before anything is composed."""
        return {**cls.unused}

    def unused_keys(self) -> dict[str, str]:
        """Keys that have no effect on the model that is trained, and why."""
        sampled = {f"train.{key}" for key in SAMPLING_KEYS if getattr(self.train, key) != getattr(TrainRecipe(), key)}
        if self.teacher:
            unused = dict.fromkeys(MODEL_KEYS, f"teacher={self.teacher!r} keeps its shape")
            unused |= {"init_from": "training starts from the teacher"}
            return unused | dict.fromkeys(sampled, "a pretrained ViT has no solver to sample")
        depth = self.model_settings().get("depth", OdeViTConfig.depth)
        if depth in DEPTHS and not DEPTHS[depth].has_trajectory:
            return dict.fromkeys(sampled, f"depth={depth} has no ODE trajectory whose solver could be sampled")
        return {}

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

    def on(self, device: str) -> Self:
        """The same recipe with a value for every `auto`, by the kind of device."""
        return replace(self, train=self.train.on(device))

    def check(self) -> None:
        """Raise one error that lists every problem."""
        problems = self.problems()
        if problems:
            raise ConfigError("the recipe", problems)

    def problems(self) -> list[str]:
        """A sentence for every problem."""
        t = self.train
        problems = [
            *device_problems(self.device),
            *(problem for logger in self.loggers for problem in choice("loggers", logger, LOGGERS)),
            *train_problems("train", t),
            *(f"data.{problem}" for problem in validate(self.data, DATA_RULES)),
            *SEED.problem("seed", self.seed),
            *writable("out", self.folder, folder=True),
            *writable("cache", self.cache, folder=True),
            *(
                f"{key}={name!r} {problem}"
                for key, name in (("teacher", self.teacher), ("init_from", self.init_from))
                if name and (problem := local_path_problem(name))
            ),
        ]
        missing = [logger for logger in self.loggers if logger in LOGGERS and find_spec(logger) is None]
        problems += [f"loggers: {logger} is not installed; pip install {logger}" for logger in missing]
        if self.resume and self.overwrite:
            problems.append("resume=true and overwrite=true contradict each other; choose one")
        if self.head_only and not self.teacher:
            problems.append("head_only=true needs a model to put the head on; pass teacher=FOLDER or a hub id")
        if self.teacher:
            problems += [f"a pretrained ViT has no trajectory to penalise; set train.{name}=0" for name in t.weights]
        if not self.teacher and (t.layer_decay, t.head_first) != (1.0, 0.0):
            problems.append("train.layer_decay and train.head_first are for a pretrained ViT; pass teacher=ViT")
        if t.head_first and t.schedule != "cosine":
            problems.append(
                f"train.head_first={t.head_first:g} has a cosine for the head and one for the whole; leave out "
                f"train.schedule={t.schedule}"
            )
        if t.capture is True and t.accumulate > 1:
            problems.append("train.capture=true replays whole steps and does not accumulate; set train.accumulate=1")
        if t.seconds:
            at_odds = {"updates": 0, "coarse_first": 0.0}
            problems += [
                f"train.seconds={t.seconds:g} ends by time, and how many updates that takes is not known before; leave "
                f"out train.{key}={getattr(t, key)}"
                for key, value in at_odds.items()
                if getattr(t, key) != value
            ]
        return problems + self._model_problems()

    def _adjoint_problems(self) -> list[str]:
        """Problems with the adjoint equation or an adaptive solver."""
        t, solver = self.train, str(self.model_settings().get("solver", OdeViTConfig.solver))
        if t.solvers or issubclass(SOLVERS[solver], FixedStepSolver):
            remedy = "leave train.solvers out" if t.solvers else "pass model.solver=dopri5"
            return [f"train.adjoint=true is for adaptive solvers; {remedy}"] if t.adjoint else []
        problems = [f"train.{name} is added up on fixed steps; pass model.solver=heun, say" for name in t.weights]
        if t.capture is True:
            problems.append(f"train.capture=true replays fixed steps, and model.solver={solver} chooses its own")
        return problems

    def _model_problems(self) -> list[str]:
        """Problems of the model, and models that cannot be trained."""
        if problem := PRESETS.problem(self.model.preset):  # type: ignore[attr-defined]
            return [f"model.preset: {problem}"]
        try:
            name = OdeViTConfig(**self.model_settings()).depth
        except ConfigError as error:
            typed = [prefix_keys("model", OdeViTConfig.own_fields(), problem) for problem in error.problems]
            keys = {"depth_options.": "depth.", "attention_options.": "model.attention_options."}
            return [reduce(lambda text, key: text.replace(key, keys[key]), keys, problem) for problem in typed]
        depth, problems = DEPTHS[name], self._adjoint_problems()
        if not depth.trainable:
            others = sorted(other for other, kind in DEPTHS.items() if kind.trainable and kind.shares_field)
            problems.append(
                f"model.depth={name} has no gradient; train with model.depth={' or '.join(others)}, and ask the "
                f"trained model with depth={name!r}"
            )
        if not depth.has_trajectory:
            problems += [
                f"model.depth={name} has no trajectory that could carry its last state on; set train.{penalty}=0"
                for penalty in self.train.weights
                if PENALTIES[penalty].is_terminal()
            ]
        return problems
