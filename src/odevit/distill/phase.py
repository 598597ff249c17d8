"""layerwise -> rollout -> random_solver: the phases of a distillation, each with its loss, solvers, rates and share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, make_dataclass, replace
from typing import Any

from odevit.core.solver_config import SolverConfig
from odevit.distill.objective import DistillObjective
from odevit.errors import FRACTION, POSITIVE_FRACTION, Expected, real, validate
from odevit.train.recipe import TrainRecipe
from odevit.train.schedule import ListSampler, SchedulePhase, parse_solver_config

# These two say when something counts; with phases, the phases do.
WHEN = ("teacher_forcing", "cross_entropy_from")
PYTHON_ONLY = ("attention_kl", "jacobian", "settling")
"""Parts of the loss that no recipe uses: they are arguments of `DistillObjective`, but no keys of a recipe."""
PhaseObjective = make_dataclass(
    "PhaseObjective",
    [(item.name, Any, None) for item in fields(DistillObjective()) if item.name not in (*WHEN, *PYTHON_ONLY)],
)
PhaseObjective.__doc__ = "What differs from the `objective` of the recipe."


@dataclass
class Phase:
    """A part of a distillation. A rate or warm-up that is not given is that of `train`."""

    share: float = 0.0
    """Its share of the training; those of all phases sum to 1."""
    teacher_forcing: bool = False
    """Whether every segment starts at the teacher's state, so that the field learns each layer by itself."""
    solver_configs: list[str] = field(default_factory=lambda: ["own"])
    """Solver settings, one sampled per batch: SOLVER:STEPS, as lie_trotter:12, or rk4:2x for twice the student's steps,
    with :HORIZONS for a longer horizon, as lie_trotter:12:1.5; `own` is the student's default. One that is listed twice
    is sampled twice as often."""
    learning_rate: float | None = None
    muon_learning_rate: float | None = None
    warmup: float | None = None
    """Share of the phase over which the rates rise; they fall as a cosine over the rest of it."""
    final_rate: float = 0.0
    """Share of the highest rates that remains at its end; more than 0 where the next phase continues from there."""
    objective: PhaseObjective = field(default_factory=PhaseObjective)  # type: ignore[valid-type]

    def full_objective(self, common: DistillObjective) -> DistillObjective:
        """The objective of this phase."""
        return replace(common, **{name: value for name, value in vars(self.objective).items() if value is not None})

    def resolved_configs(self, own: SolverConfig) -> tuple[SolverConfig, ...]:
        """Its solver settings, for a student with the settings `own`."""
        return tuple(parse_solver_config(text, own) for text in self.solver_configs)


RULES = {
    "share": POSITIVE_FRACTION,
    "solver_configs": Expected("at least one, such as own", bool),
    **dict.fromkeys(("learning_rate", "muon_learning_rate"), real(above=0, optional=True)),
    "warmup": real(minimum=0, below=1, optional=True),
    "final_rate": Expected("a share of the rates in [0, 1]", FRACTION.accepts),
}


def phase_problems(phases: Mapping[str, Phase], common: DistillObjective) -> list[str]:
    """Everything that is wrong with phases, as sentences."""
    problems, anyone = [], SolverConfig("lie_trotter", 12, 12.0)
    for name, phase in phases.items():
        said = [f"phases.{name}.{problem}" for problem in validate(phase, RULES)]
        for text in phase.solver_configs:
            try:
                parse_solver_config(text, anyone)
            except ValueError as error:
                said.append(f"phases.{name}.solver_configs: {error}")
        said += [f"phases.{name}.{problem}" for problem in phase.full_objective(common).problems()]
        if phase.teacher_forcing and phase.full_objective(common).path != "all":
            said.append(
                f"phases.{name}.teacher_forcing=true starts at every layer's state and needs objective.path=all"
            )
        problems += said
    total = sum(phase.share for phase in phases.values())
    if phases and abs(total - 1) > 1e-6:
        shares = ", ".join(f"{name} {phase.share:g}" for name, phase in phases.items())
        problems.append(f"the shares of the phases sum to {total:g} ({shares}); expected 1: change another as well")
    return problems


def make_schedule(
    phases: Mapping[str, Phase], common: DistillObjective, train: TrainRecipe, own: SolverConfig, seed: int
) -> list[SchedulePhase]:
    """The phases as the trainer takes them, for a student with the solver settings `own`."""
    parts: list[SchedulePhase] = []
    goals = [(phase.teacher_forcing, phase.full_objective(common)) for phase in phases.values()]
    for (name, phase), goal in zip(phases.items(), goals, strict=True):
        configs = phase.resolved_configs(own)
        rates = {
            key: getattr(train, key) if getattr(phase, key) is None else getattr(phase, key)
            for key in ("learning_rate", "muon_learning_rate", "warmup")
        }
        end = phase.share + (parts[-1].end if parts else 0.0)
        sampler, kind, eval_configs = ListSampler(configs, seed), goals.index(goal), evaluation_configs(configs, own)
        parts.append(
            SchedulePhase(
                name,
                phase.share,
                end,
                sampler=sampler,
                kind=kind,
                eval_configs=eval_configs,
                final_rate=phase.final_rate,
                **rates,
            )
        )
    return parts


def evaluation_configs(configs: Sequence[SolverConfig], own: SolverConfig) -> tuple[SolverConfig, ...]:
    """The student's own settings, the coarsest ones, and the cheapest ones that rest where the equation does.

    The best weights are those that agree most with the teacher on the mean of these. Selected by
    the student's own settings alone, they would work with one solver only.
    """
    ahead = [solver_config for solver_config in configs if solver_config.horizon <= own.horizon]
    coarsest = min(ahead, key=lambda solver_config: solver_config.steps, default=own)
    exact = [solver_config for solver_config in ahead if getattr(solver_config.method, "rests_with_equation", False)]
    return tuple(dict.fromkeys([own, coarsest, *sorted(exact, key=lambda solver_config: solver_config.steps)[:1]]))
