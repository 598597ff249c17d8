"""Everything that defines a distillation: one dataclass, saved beside the weights. Hydra only fills it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, make_dataclass, replace
from functools import lru_cache
from typing import Any

from odevit.data import Augmentation
from odevit.distill.alignment import KINDS
from odevit.errors import ConfigError, Expected, broken, number, whole
from odevit.model import OdeStudentConfig
from odevit.train.loss import Penalised
from odevit.train.recipe import SHARE, Recipe, TrainRecipe, choice, one_of

# Every field of the student's configuration with its default, but for two that depend on others: the horizon is the
# teacher's number of blocks, the solver exponential Euler with a leak and Lie-Trotter without one.
DEFAULTS = {**OdeStudentConfig.equation_fields(), "horizon": None, "solver": None}
StudentRecipe = make_dataclass("StudentRecipe", [(name, Any, default) for name, default in DEFAULTS.items()])
StudentRecipe.__doc__ = "The equation that replaces the teacher's blocks; the fields are those of `OdeStudentConfig`."


@dataclass
class DistillObjective(Penalised):
    """Weights of the parts of the loss, and when they count. The default is ours: all tokens, logits, no labels.

    The paper's own is `cls=1, patches=0, logits=0, jasmin=1, jasmin_k=2`. Beside these keys there are the weight and
    the options of every penalty of a trajectory.
    """

    path: str = "all"
    """`all` checkpoints, or only the `last` state."""
    cls: float = 1.0
    """Weight of the error of CLS."""
    patches: float = 1.0
    """Weight of the error of the patches; 0 is the paper's loss."""
    registers: float = 0.0
    """Weight of the error of the registers."""
    attention_l1: float = 0.0
    """Weight of the L1 distance of thresholded attention; costs the fused kernel."""
    attention_kl: float = 0.0
    """Weight of the KL divergence of attention; costs the fused kernel."""
    logits: float = 1.0
    """Weight of the KL divergence from the teacher's answer."""
    temperature: float = 1.0
    """Temperature of that divergence."""
    cross_entropy: float = 0.0
    """Weight of the cross entropy with labels; 0 distils without labels."""
    cross_entropy_from: float = 0.0
    """Fraction of training after which it counts."""
    unfreeze_head: bool = False
    """Whether the head is trained as well, from then on."""
    forced: float = 0.0
    """Initial fraction of training in which every stretch starts at the teacher's own state."""

    @property
    def needs_attentions(self) -> bool:
        """Whether attention maps of student and teacher are compared."""
        return self.attention_l1 > 0 or self.attention_kl > 0

    def problems(self) -> list[str]:
        """Everything that is wrong, as sentences."""
        problems = self.penalty_problems("objective") + [f"objective.{p}" for p in broken(self, OBJECTIVE_RULES)]
        if self.unfreeze_head and self.cross_entropy == 0:
            problems.append("objective.unfreeze_head=true needs labels to train on; set objective.cross_entropy=1.0")
        if self.forced > 0 and self.path != "all":
            problems.append("objective.forced > 0 starts every stretch at a layer's state and needs objective.path=all")
        if not any((self.cls, self.patches, self.registers, self.logits, self.cross_entropy)):
            problems.append("every weight of the objective is 0; set for example objective.cls=1.0")
        return problems


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


WEIGHTS = ("cls", "patches", "registers", "attention_l1", "attention_kl", "logits", "cross_entropy")
OBJECTIVE_RULES = {
    "path": one_of("all", "last"),
    **dict.fromkeys(WEIGHTS, number(least=0)),
    **dict.fromkeys(("cross_entropy_from", "forced"), Expected("a fraction of training in [0, 1]", SHARE.fine)),
    "temperature": number(above=0),
}
STOPPING_RULES = {
    "bound": Expected("curvature or weights, or nothing", one_of("", "curvature", "weights").fine),
    "error": one_of("norm", "mse"),
    "lipschitz": Expected("L >= 0, 0 to measure it", number(least=0).fine),
    **dict.fromkeys(("patience", "window"), whole(1)),
}


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
        problems = super().problems() + self.objective.problems()
        problems += [f"stopping.{problem}" for problem in broken(self.stopping, STOPPING_RULES)]
        problems += choice("alignment.kind", self.alignment.kind, KINDS)
        problems += one_of("all", "cls").problem("alignment.tokens", self.alignment.tokens)
        try:
            self.student_config()
        except ConfigError as error:
            problems += [f"student: {problem}" for problem in error.problems]
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
