"""top-1(solver, N, T): the accuracy of one model with other solver settings, and with other meanings of depth."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from odevit.analysis.base import predicted_classes
from odevit.analysis.settling import FAR
from odevit.analysis.significance import Proportion
from odevit.core.base import SOLVERS, FixedStepSolver
from odevit.core.image_model import ImageModel
from odevit.core.solution import Solution
from odevit.core.solver_config import SolverConfig, make_solver
from odevit.systems.equilibrium import EquilibriumDepth
from odevit.tokens import Logits, Tokens

STEPS = (4, 6, 8, 12, 24, 64)
"""Numbers of steps that the model's own solver is tried with."""
HORIZONS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
"""Multiples of its horizon to which a model is integrated."""
ACCURATE = "dopri5"
"""A solver that is more accurate than the one a model was trained with (Ott et al. 2021)."""
REST_TOLERANCE = 1e-5
"""|step(x) - x| / |x| of a rest point that is compared with the end of a long recurrence."""


@dataclass(frozen=True)
class Outcome:
    """The answers with one solver config.

    Args:
        top1: share of right answers; an answer that is not finite is wrong.
        agreement: share of images with the same answer as with the model's own config.
        nfe: evaluations of the field; for an adaptive solver the mean over batches.
        finite: share of images with a finite answer.
        stable: whether the step is within the solver's stability limit; None where that was not determined.
        right: which images were answered correctly, for paired comparisons.
    """

    solver_config: SolverConfig
    images: int
    top1: float
    agreement: float
    nfe: float
    finite: float
    stable: bool | None = None
    right: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool), repr=False, compare=False)

    def to_dict(self) -> dict[str, float | str | bool | None]:
        """Everything except the answers to the single images."""
        measured = {name: value for name, value in vars(self).items() if name not in ("solver_config", "right")}
        return {**self.solver_config.to_dict(), **measured}


def step_configs(own: SolverConfig) -> list[SolverConfig]:
    """The model's own solver with other numbers of steps; an adaptive one chooses them itself."""
    return [own.replace(steps=steps) for steps in sorted({*STEPS, own.steps})] if own.is_fixed else [own]


def horizon_configs(own: SolverConfig, horizons: Sequence[float] = HORIZONS) -> list[SolverConfig]:
    """The model's own steps, continued beyond its horizon."""
    return list(dict.fromkeys(own.stretched(factor) for factor in horizons))


def solver_configs(own: SolverConfig) -> list[SolverConfig]:
    """Every other fixed-step solver with half, once and twice the steps, up to four times the evaluations."""
    configs = []
    for name in sorted(SOLVERS):
        solver = make_solver(name)
        if name != own.name and isinstance(solver, FixedStepSolver):
            counts = sorted({max(1, own.steps // 2), own.steps, 2 * own.steps})
            configs += [own.replace(name, steps) for steps in counts if steps * solver.evaluations(2) <= 4 * own.steps]
    return configs


def accurate_config(own: SolverConfig) -> SolverConfig:
    """The same equation solved to a tolerance: does the accuracy survive? (Ott et al. 2021)."""
    return replace(own, solver=ACCURATE)  # `own.replace` would keep the tolerance of a dopri5 of the model's own


def grid_configs(own: SolverConfig) -> list[SolverConfig]:
    """Horizons T/2 to 8T by N/4 to 2N steps of the model's own solver (the paper's Fig. 7)."""
    counts = sorted({max(1, round(own.steps * share)) for share in (0.25, 0.5, 1, 2)})
    return [own.replace(steps=n, horizon=own.horizon * share) for share in (0.5, 1, 2, 4, 8) for n in counts]


@torch.no_grad()
def sweep(
    model: ImageModel,
    batches: Iterable[Mapping[str, Tensor]],
    configs: Iterable[SolverConfig],
    *,
    callback: Callable[[SolverConfig, Tokens, Tokens], None] | None = None,
) -> list[Outcome]:
    """The outcome of every config, in the order given.

    Each image is embedded once. Configs with the same solver and step size share one trajectory: N steps of h are the
    first N steps of any longer trajectory with that h.

    Args:
        model: in evaluation mode, see `frozen`.
        batches: with class numbers as `labels`, and images as `pixel_values` or, already embedded, as `x0`.
        configs: solver, steps and horizon of each integration.
        callback: called batch by batch with each config, the state at its end and x(0); configs with the same step size
            come in the order of their length.
    """
    configs, own = list(dict.fromkeys(configs)), model.solver_config
    answers: dict[SolverConfig, list[Tensor]] = {config: [] for config in [own, *configs]}
    evaluations = dict.fromkeys(answers, 0)
    labels: list[Tensor] = []
    for batch in batches:
        x0 = batch["x0"] if "x0" in batch else model.embed(batch["pixel_values"])
        labels.append(batch["labels"].cpu())
        for group in _same_trajectory(answers):
            for config, state, nfe in _final_states(model, x0, group):
                answers[config].append(predicted_classes(model.readout(state)).cpu())
                evaluations[config] += nfe * len(x0)
                if callback is not None:
                    callback(config, state, x0)
    if not labels:
        raise ValueError("there are no images to integrate; expected at least one batch")
    true, usual = torch.cat(labels), torch.cat(answers[own])

    def outcome(config: SolverConfig) -> Outcome:
        answer, images = torch.cat(answers[config]), len(true)
        right, same, finite = answer == true, (answer == usual) & (answer >= 0), answer >= 0
        top1, agreement, share = (Proportion.of(mask).value for mask in (right, same, finite))
        return Outcome(config, images, top1, agreement, evaluations[config] / images, share, right=right)

    return [outcome(config) for config in configs]


def _same_trajectory(configs: Iterable[SolverConfig]) -> list[list[SolverConfig]]:
    """Configs with the same solver and step size together, the shortest first; others one by one.

    The cost of an adaptive or multistep solve is known only for the config that was solved, and the steps of a grid
    that is not uniform are not those of a longer one.
    """
    groups: dict[object, list[SolverConfig]] = {}
    for config in configs:
        method = config.method
        shared = isinstance(method, FixedStepSolver) and not method.restart and config.grid == "uniform"
        groups.setdefault((config.solver, f"{config.step:.9g}") if shared else config, []).append(config)
    return [sorted(group, key=lambda config: config.steps) for group in groups.values()]


def _final_states(
    model: ImageModel, x0: Tokens, configs: Sequence[SolverConfig]
) -> Iterator[tuple[SolverConfig, Tokens, int]]:
    """Each config with its final state and its evaluations, from one solve of the longest."""
    longest, ends = configs[-1], [config.steps for config in configs]
    diverged = torch.full_like(x0, torch.nan)
    if longest.is_fixed and model.field.grid_problems(longest.edges):  # the field refuses steps of this length
        yield from ((config, diverged, 0) for config in configs)
        return
    solution = model.follow(x0, longest, save=ends)
    # A solve that gave up early saved fewer states; the missing ones have no answer.
    states, spent = dict(zip(ends, solution.states, strict=False)), dict(zip(ends, solution.spent, strict=False))
    for config in configs:
        yield config, states.get(config.steps, diverged), spent.get(config.steps, solution.stats.nfe)


@dataclass(frozen=True)
class DepthAnswer:
    """The answers under one meaning of depth.

    Args:
        evaluations: of the field, for each sample.
        settled: whether the solver reached its end, and for the equilibrium its rest point.
    """

    logits: Logits
    evaluations: Tensor
    settled: bool


@torch.no_grad()
def three_depths(model: ImageModel, x0: Tokens) -> dict[str, DepthAnswer]:
    """The same weights as an ODE, a recurrent network and an equilibrium model.

    - `ode`: x(T), T the model's own horizon, by an adaptive solver: the equation without discretisation error.
    - `recurrent`: the model's own step, repeated for eight horizons.
    - `equilibrium`: the fixed point of that step, by Anderson's method.

    Where there is an attractor, the last two agree; the first agrees as far as T is long and the steps are fine. A
    field that depends on time for ever has no rest point: then the third is the end of the second, and not settled.

    Args:
        model: in evaluation mode (see `frozen`).
        x0: embedded images, `model.embed(pixels)`.
    """
    own = model.solver_config
    accurate, fixed = (ACCURATE, own.solver) if own.is_fixed else (own.solver, "exponential_euler")
    equation = model.follow(x0, own.replace(solver=accurate, steps=1))
    recurrence = model.follow(x0, own.replace(solver=fixed).stretched(FAR))
    if model.field.autonomous_from == math.inf:
        rest = replace(recurrence, failure="A field that depends on time for ever has no rest point.")
    else:
        rest = EquilibriumDepth(lambda: model.field, own.replace(solver=fixed), tolerance=REST_TOLERANCE)(x0)

    def answer(solution: Solution) -> DepthAnswer:
        alike = torch.full((len(x0),), solution.stats.nfe, device=x0.device)
        evaluations = alike if solution.evaluations is None else solution.evaluations
        return DepthAnswer(model.readout(solution.state), evaluations, solution.ok)

    return {"ode": answer(equation), "recurrent": answer(recurrence), "equilibrium": answer(rest)}
