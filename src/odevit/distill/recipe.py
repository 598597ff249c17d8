"""Everything that defines a distillation: one dataclass, saved beside the weights. Hydra only fills it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, make_dataclass, replace
from typing import Any

from odevit.data import Augmentation
from odevit.distill.alignment import KINDS
from odevit.distill.configuration import OdeEncoderConfig
from odevit.distill.objective import DistillObjective
from odevit.distill.stopping import StoppingRecipe
from odevit.errors import ConfigError, unknown_name
from odevit.train.recipe import Recipe, TrainRecipe

# Every field of the student's configuration with its default; the horizon is the teacher's number of blocks.
StudentRecipe = make_dataclass(
    "StudentRecipe",
    [(each.name, Any, None if each.name == "horizon" else each.default) for each in fields(OdeEncoderConfig)],
)
StudentRecipe.__doc__ = "The equation that replaces the teacher's blocks; the fields are those of `OdeEncoderConfig`."


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
class DistillRecipe(Recipe):
    """A distillation.

    `train.steps` are drawn over the student's own horizon; `train.horizons` beyond 1 go on from there, the target
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
    """A folder to keep the teacher's hidden states in: an epoch then costs no pass of it. Not with augmentation."""
    compare: bool = False
    """Whether the student's architecture is trained from scratch too, with labels, for as many steps."""

    def student_config(self) -> OdeEncoderConfig:
        """The configuration that surgery takes."""
        return OdeEncoderConfig.from_dict(asdict(self.student))

    def problems(self) -> list[str]:
        found = super().problems() + self.objective.problems() + self.stopping.problems()
        try:
            self.student_config()
        except ConfigError as error:
            found += [f"student: {problem}" for problem in error.problems]
        if self.alignment.kind not in KINDS:
            found.append("alignment.kind: " + unknown_name("kind", self.alignment.kind, KINDS))
        if self.alignment.tokens not in ("all", "cls"):
            found.append(f"alignment.tokens={self.alignment.tokens!r}; expected all or cls")
        if self.train.longest_step:
            found.append(
                "train.longest_step is for odevit train: here longer horizons bring their own steps; set it to 0"
            )
        if self.train.penalised:
            found.append(
                f"train.{self.train.penalised[0]} is for odevit train; a student's trajectory is weighed by "
                "objective.jasmin and objective.transport"
            )
        if self.compare and self.teacher:
            found.append('compare=true is for teachers that are trained here, teacher=""; compare by hand otherwise')
        moving = replace(self.data.augmentation, label_smoothing=0.0) != Augmentation()
        if self.features and moving:
            found.append("features= keeps what the teacher says of fixed images; switch data.augmentation off")
        if self.features and (self.objective.attention_l1 > 0 or self.objective.attention_kl > 0):
            found.append("features= keeps states and logits, no attention maps; set the weights of attention to 0")
        if self.features and self.train.capture:
            found.append("features= are read from disk, which a replayed step cannot do; set train.capture=false")
        phases = self.objective.forced > 0 or self.objective.cross_entropy_from > 0
        if self.train.capture and phases:
            found.append(
                "train.capture=true replays one kind of step; set objective.forced and cross_entropy_from to 0"
            )
        return found
