"""Everything that defines a distillation: one dataclass, saved beside the weights. Hydra only fills it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, make_dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from odevit.bundled import bundled_models
from odevit.core.base import DEPTHS
from odevit.core.configuration_odevit import OdeViTConfig
from odevit.distill.alignment import KINDS
from odevit.distill.objective import DistillObjective
from odevit.distill.phase import PYTHON_ONLY, WHEN, Phase, phase_problems
from odevit.errors import (
    POSITIVE_FRACTION,
    ConfigError,
    Expected,
    integer,
    one_of,
    prefix_keys,
    real,
    validate,
)
from odevit.solvers.penalties import PENALTIES
from odevit.surgery.configuration_student import OdeStudentConfig
from odevit.train.folder import read_recipe
from odevit.train.recipe import (
    AUTO,
    MODEL_KEYS,
    SAMPLING_KEYS,
    ModelRecipe,
    Recipe,
    TrainRecipe,
    choice,
    train_problems,
)
from odevit.train.recipe_keys import given_keys, quoted

STUDENT_FIELDS = (
    *("solver", "steps", "horizon", "grid", "knots", "knot_times", "blend", "vector_knots", "vector_blend", "rank"),
    *("init", "registers", "mlp_ratio", "norm", "bias", "attention", "time_conditioned"),
    *("leak", "fade", "attention_dropout", "hidden_dropout", "output_dropout"),
)
"""The fields of `OdeStudentConfig` that recipes set; the others follow the teacher."""
# Two defaults depend on others: the horizon is the teacher's number of blocks, the solver exponential Euler with a leak
# and Lie-Trotter without one.
FIELDS = OdeStudentConfig.equation_fields() | {"horizon": None, "solver": None}
DEFAULTS = {name: FIELDS[name] for name in STUDENT_FIELDS}
StudentRecipe = make_dataclass("StudentRecipe", [(name, Any, default) for name, default in DEFAULTS.items()])
StudentRecipe.__doc__ = (
    "The equation that replaces the teacher's blocks; the fields are those of `OdeStudentConfig`. `knots=4` is short "
    "for student.knots=4."
)


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
    patience: int = 10
    """Evaluations in a row with every checkpoint below the bound."""
    window: int = 3
    """Evaluations over which errors are averaged."""


ALIGNMENT_RULES = {"tokens": one_of("all", "cls"), "temperature": real(above=0), "images": integer(1)}
STOPPING_RULES = {
    "bound": Expected("curvature or weights, or nothing", one_of("", "curvature", "weights").accepts),
    "lipschitz": Expected("L >= 0, 0 to measure it", real(minimum=0).accepts),
    **dict.fromkeys(("patience", "window"), integer(1)),
}


TEACHER_MODEL = (
    *("preset", "image_size", "tokenizer", "patch_size", "tokenizer_channels", "use_cls_token", "pooling"),
    *("hidden_size", "num_attention_heads", "mlp_ratio", "depth", "steps"),
)
TEACHER_TRAIN = ("epochs", "batch_size", "learning_rate", "warmup", "ema", "evaluate_every")
"""The keys that may be typed for a teacher that is trained here; an experiment may set any."""


def _others(group: str, part: object, used: Sequence[str], why: str) -> dict[str, str]:
    """The keys of a part of the recipe that are not among the used ones, and why."""
    return {f"{group}.{name}": why for name in vars(part) if name not in used}


@dataclass
class DistillRecipe(Recipe):
    """A distillation.

    `train.steps` are drawn over the student's own horizon; `train.horizons` beyond 1 continue from there, the target
    staying the teacher's last state, so that the student learns to rest at its answer. Without a `teacher`, the model
    that `model` describes is trained first.
    """

    root: ClassVar[str] = "distill"
    verb: ClassVar[str] = "distill"
    unused: ClassVar[dict[str, str]] = {
        "init_from": "a student starts from its teacher",
        "head_only": "it is for odevit train",
        **dict.fromkeys(("train.layer_decay", "train.head_first"), "it is for odevit train"),
        **{
            f"train.{key}": f"a student's trajectory is penalised by objective.{key}"
            for key in vars(TrainRecipe())
            if key.startswith(tuple(PENALTIES))
        },
        "train.adjoint": "a student is solved in fixed steps",
        **dict.fromkeys(("train.solvers", "train.own_share"), "a student draws solvers by phases.NAME.solver_configs"),
        **{f"objective.{name}": f"only DistillObjective({name}=...) in Python sets it" for name in PYTHON_ONLY},
        **_others("model", ModelRecipe(), TEACHER_MODEL, "a teacher that is trained here is a stack of layers"),
        **_others("teacher_train", TrainRecipe(), TEACHER_TRAIN, "use odevit train for the teacher, and pass teacher="),
    }
    """Keys of `Recipe` that have no effect here, and why."""

    name: str = "distill-digits"
    student: StudentRecipe = field(default_factory=StudentRecipe)  # type: ignore[valid-type]
    objective: DistillObjective = field(default_factory=DistillObjective)
    phases: dict[str, Phase] = field(default_factory=dict)
    """Parts of the training, one after the other; the keys of each are phases.NAME.KEY."""
    alignment: AlignmentRecipe = field(default_factory=AlignmentRecipe)
    stopping: StoppingRecipe = field(default_factory=StoppingRecipe)
    teacher_train: TrainRecipe = field(default_factory=TrainRecipe)
    """How the teacher is trained when none is given; `model` then describes it."""
    unlabelled: list[str] = field(default_factory=list)
    """Folders of more images to train on: unlabelled=FOLDER,FOLDER. Agreement is measured on the data's own."""
    compare: bool | None = False
    """Whether the student's architecture is trained from scratch too, with labels, for as many steps; nothing: where
    the teacher is trained here as well, since only then its architecture can be."""
    labels: float = 1.0
    """Share of the labels that the student from scratch has; the distilled one needs none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.name:
            self.name = "-".join(Path(source).resolve().name for source in (self.teacher, self.data.source) if source)

    @classmethod
    def expand(cls, overrides: Sequence[str]) -> list[str]:
        """A given teacher has an experiment of its own, and one that is an ODE brings its data."""
        given, implied = given_keys(overrides), list[str]()
        teacher = given.get("teacher", "")
        if teacher and "experiment" not in given:
            implied.append(f"experiment=distill/{'steps' if is_equation(teacher) else 'vit'}")
        if is_equation(teacher) and not given.keys() & {"data", "data.source"}:
            source = read_recipe(teacher).get("data", {}).get("source")
            implied += [f"data.source={quoted(str(source))}"] if source else []
        return [*implied, *map(_long_form, overrides)]

    @classmethod
    def unused_overrides(cls, given: Mapping[str, str]) -> dict[str, str]:
        """Keys of other trainings, and those that the kind of the teacher decides."""
        teacher = given.get("teacher", "")
        unused = {**cls.unused}
        if not teacher:
            return unused
        unused |= dict.fromkeys(MODEL_KEYS, f"teacher={teacher!r} is a model already")
        if not is_equation(teacher):
            return unused
        student = "the student of an ODE is that ODE, solved in fewer steps"
        used = ("others", "logits", "temperature", "cross_entropy")
        unused |= {f"student.{name}": student for name in DEFAULTS if name not in ("steps", "solver", "grid")}
        unused |= {
            f"objective.{name}": "all tokens and the logits of an ODE are matched"
            for name in vars(DistillObjective())
            if name not in used
        }
        unused |= dict.fromkeys(("alignment", "stopping"), "an ODE has no layers to match")
        if given.get("phases") != "none":
            unused["phases"] = "an ODE has no layers to match"
        few = "few steps and the teacher's own take turns"
        unused |= {f"train.{name}": few for name in SAMPLING_KEYS if name != "steps"}
        return unused | {"unlabelled": "it is for students of a ViT", "knots": student}

    def unused_keys(self) -> dict[str, str]:
        return {}

    @property
    def objectives(self) -> dict[str, DistillObjective]:
        """What is asked in each phase, by its name; without phases there is one goal, which has none."""
        return {name: phase.full_objective(self.objective) for name, phase in self.phases.items()} or {
            "": self.objective
        }

    def student_config(self) -> OdeStudentConfig:
        """The configuration that surgery takes."""
        values = asdict(self.student)
        values["solver"] = values["solver"] or ("exponential_euler" if values["leak"] else "lie_trotter")
        return _student_config(json.dumps(values))

    def problems(self) -> list[str]:
        problems = super().problems() + self.objective.problems() + self._phase_problems()
        problems += train_problems("teacher_train", self.teacher_train)
        problems += [f"stopping.{problem}" for problem in validate(self.stopping, STOPPING_RULES)]
        problems += choice("alignment.kind", self.alignment.kind, KINDS)
        problems += [f"alignment.{problem}" for problem in validate(self.alignment, ALIGNMENT_RULES)]
        try:
            self.student_config()
        except ConfigError as error:
            problems += [prefix_keys("student", DEFAULTS, problem) for problem in error.problems]
        if self.student.grid != "uniform" and not is_equation(self.teacher):  # type: ignore[attr-defined]
            problems.append("student.grid is for teachers that follow an equation: layers are met on a uniform grid")
        if self.train.longest_step:
            problems.append("train.longest_step is for odevit train: here longer horizons have more steps; set it to 0")
        problems += [
            f"train.{name} is for odevit train; a student's trajectory is penalised by objective.{name}"
            for name in self.train.weights
        ]
        problems += POSITIVE_FRACTION.problem("labels", self.labels)
        if self.labels != 1 and (self.teacher or self.compare is False):
            problems.append('labels= is for the student from scratch of compare=true, teacher=""; leave it out')
        if self.compare and self.teacher:
            problems.append('compare=true is for teachers that are trained here, teacher=""; compare by hand otherwise')
        if problems:
            return problems  # weights that are no numbers cannot be compared
        goals = self.objectives.values()
        if self.unlabelled and any(goal.cross_entropy > 0 for goal in goals):
            problems.append("unlabelled= has no labels to learn; set objective.cross_entropy=0")
        if self.train.capture is True and (self.objective.teacher_forcing > 0 or self.objective.cross_entropy_from > 0):
            problems.append(
                "train.capture=true replays one kind of step; set objective.teacher_forcing and cross_entropy_from to 0"
            )
        return problems

    def _phase_problems(self) -> list[str]:
        """What is wrong with the phases, or contradicts them."""
        if not self.phases:
            return []
        t, goal, plain = self.train, self.objective, TrainRecipe()
        drawn = [key for key in ("steps", "horizons", "solvers", "own_share", "coarse_first") if getattr(t, key)]
        others = {
            **{f"train.{key}": "each phase lists its solver settings, phases.NAME.solver_configs" for key in drawn},
            **{f"objective.{key}": "a phase says when, by its share" for key in WHEN if getattr(goal, key)},
            **({"stopping.bound": "a phase ends by its share"} if self.stopping.bound else {}),
            **({"train.schedule": "every phase has a cosine of its own"} if t.schedule != plain.schedule else {}),
        }
        problems = [
            f"{key} has no meaning with phases: {why}; leave it out, or pass phases=none" for key, why in others.items()
        ]
        return problems + phase_problems(self.phases, goal)

    def on(self, device: str) -> DistillRecipe:
        settled = super().on(device)
        changes = self.objective.teacher_forcing > 0 or self.objective.cross_entropy_from > 0
        if self.train.capture == AUTO and changes:
            settled = replace(settled, train=replace(settled.train, capture=False))
        return settled


@lru_cache(maxsize=1)
def _student_config(values: str) -> OdeStudentConfig:
    """Made and validated once, when a recipe is checked; surgery then takes the same one."""
    return OdeStudentConfig(**json.loads(values))


def _long_form(override: str) -> str:
    """An override as Hydra reads it: `knots=4` is the student's, `unlabelled=A,B` a list of folders."""
    key, _, value = override.partition("=")
    if key == "unlabelled" and not value.startswith("["):
        return f"unlabelled=[{','.join(quoted(folder) for folder in value.split(',') if folder)}]"
    return f"student.{override}" if key == "knots" else override


def is_equation(source: str) -> bool:
    """Whether a teacher is a model of ours that follows a trajectory: a run's folder, or a bundled model."""
    if not source:
        return False
    folder = Path(source).expanduser()
    file = (folder if folder.exists() else bundled_models().get(source, folder)) / "config.json"
    try:
        settings = json.loads(file.read_text())
        depth = DEPTHS[settings.get("depth", "")]
    except (OSError, ValueError, AttributeError, KeyError):
        return False
    return settings.get("model_type") == OdeViTConfig.model_type and depth.has_trajectory


def compose_distillation(overrides: Sequence[str] = ()) -> DistillRecipe:
    """The recipe that `odevit distill OVERRIDES` runs."""
    from odevit.train.compose import compose_as  # Hydra is slow to import

    return compose_as(DistillRecipe, overrides)
