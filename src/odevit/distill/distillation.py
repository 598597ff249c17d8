"""Everything that defines a distillation: one dataclass, saved beside the weights. Hydra only fills it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, make_dataclass, replace
from functools import lru_cache
from typing import Any

from odevit.data import Augmentation
from odevit.distill.alignment import KINDS
from odevit.distill.objective import DistillObjective
from odevit.errors import ConfigError, unknown_name
from odevit.model import OdeStudentConfig
from odevit.train.recipe import Recipe, TrainRecipe

# Every field of the student's configuration with its default, but for two that depend on others: the horizon is the
# teacher's number of blocks, the solver exponential Euler with a leak and Lie-Trotter without one.
DEFAULTS = {**OdeStudentConfig.equation_fields(), "horizon": None, "solver": None}
StudentRecipe = make_dataclass("StudentRecipe", [(name, Any, default) for name, default in DEFAULTS.items()])
StudentRecipe.__doc__ = "The equation that replaces the teacher's blocks; the fields are those of `OdeStudentConfig`."


@dataclass
class AlignmentRecipe:
    """Which step meets which layer."""

    kind: str = "arc"
    """`distance` (the paper's), `arc` or `uniform`."""
    temperature: float = 1.0
    tokens: str = "all"
    """Whose movement is measured: `all` tokens, or `cls`."""
    images: int = 512
    """How many training images it is measured on."""


@dataclass
class StoppingRecipe:
    """The paper's early stopping. Off unless a bound is named."""

    bound: str = ""
    """`curvature`: eq. (8) with the curvature of the student's own path; `weights`: eq. (11) from its matrices."""
    lipschitz: float = 0.5
    """L, as the paper assumes it; 0 measures it at the student's last states instead."""
    radius: float = 10.0
    """R of eq. (11)."""
    error: str = "norm"
    """`norm`: |x - h| over the matched tokens, what eq. (8) bounds; `mse`: the mean square, what the paper compares."""
    patience: int = 10
    """Evaluations in a row with every checkpoint below the bound."""
    window: int = 3
    """Evaluations over which errors are averaged."""

    def problems(self) -> list[str]:
        """Everything that is wrong, as sentences."""
        problems = []
        if self.bound not in ("", "curvature", "weights"):
            problems.append(f"stopping.bound={self.bound!r}; expected curvature or weights, or nothing")
        if self.error not in ("norm", "mse"):
            problems.append(f"stopping.error={self.error!r}; expected norm or mse")
        if self.lipschitz < 0:
            problems.append(f"stopping.lipschitz={self.lipschitz}; expected L >= 0, 0 to measure it")
        for name in ("patience", "window"):
            if getattr(self, name) < 1:
                problems.append(f"stopping.{name}={getattr(self, name)}; expected at least 1")
        return problems


@dataclass
class DistillRecipe(Recipe):
    """A distillation.

    `train.steps` are drawn over the student's own horizon; `train.horizons` beyond 1 continue from there, the target
    staying the teacher's last state, so that the student learns to rest at its answer. Without a `teacher`, the model
    that `model` describes is trained first.
    """

    name: str = "distill-digits"
    student: StudentRecipe = field(default_factory=StudentRecipe)  # type: ignore[valid-type]
    objective: DistillObjective = field(default_factory=DistillObjective)
    alignment: AlignmentRecipe = field(default_factory=AlignmentRecipe)
    stopping: StoppingRecipe = field(default_factory=StoppingRecipe)
    teacher_train: TrainRecipe = field(default_factory=TrainRecipe)
    """How the teacher is trained when none is given; `model` then describes it."""
    features: str = ""
    """A folder to keep the teacher's hidden states in, which then runs only once. Not with augmentation."""
    compare: bool = False
    """Whether the student's architecture is trained from scratch too, with labels, for as many steps."""

    def student_config(self) -> OdeStudentConfig:
        """The configuration that surgery takes."""
        values = asdict(self.student)
        values["solver"] = values["solver"] or ("exponential_euler" if values["leak"] else "lie_trotter")
        return _student_config(tuple(values.items()))

    def problems(self) -> list[str]:
        problems = super().problems() + self.objective.problems() + self.stopping.problems()
        try:
            self.student_config()
        except ConfigError as error:
            problems += [f"student: {problem}" for problem in error.problems]
        if self.alignment.kind not in KINDS:
            problems.append("alignment.kind: " + unknown_name("kind", self.alignment.kind, KINDS))
        if self.alignment.tokens not in ("all", "cls"):
            problems.append(f"alignment.tokens={self.alignment.tokens!r}; expected all or cls")
        if self.train.longest_step:
            problems.append(
                "train.longest_step is for odevit train: here longer horizons bring their own steps; set it to 0"
            )
        problems += [
            f"train.{name} is for odevit train; a student's trajectory is penalised by objective.{name}"
            for name in self.train.weights
        ]
        if self.compare and self.teacher:
            problems.append('compare=true is for teachers that are trained here, teacher=""; compare by hand otherwise')
        if self.features and replace(self.data.augmentation, label_smoothing=0.0) != Augmentation():
            problems.append("features= keeps the teacher's states of fixed images; switch data.augmentation off")
        if self.features and self.objective.needs_attentions:
            problems.append("features= keeps states and logits, no attention maps; set the weights of attention to 0")
        if self.features and self.train.capture:
            problems.append("features= are read from disk, which a replayed step cannot do; set train.capture=false")
        if self.train.capture and (self.objective.forced > 0 or self.objective.cross_entropy_from > 0):
            problems.append(
                "train.capture=true replays one kind of step; set objective.forced and cross_entropy_from to 0"
            )
        return problems


@lru_cache(maxsize=1)
def _student_config(values: tuple[tuple[str, Any], ...]) -> OdeStudentConfig:
    """Made and validated once, when a recipe is checked; surgery then takes the same one."""
    return OdeStudentConfig(**dict(values))


def compose_distillation(overrides: Sequence[str] = ()) -> DistillRecipe:
    """The recipe that `odevit distill OVERRIDES` would run."""
    from odevit.train.compose import compose_as  # Hydra is slow to import, and only needed here

    return compose_as(DistillRecipe, "distill", overrides)
