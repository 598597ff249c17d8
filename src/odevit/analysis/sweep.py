"""top-1(solver, N, T): what becomes of the answers in another way."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

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
STRETCHES = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
"""How far beyond its horizon a model is integrated, in horizons."""
ACCURATE = "dopri5"
"""The solver that is more accurate than the one a model was trained with (Ott et al. 2021)."""


NEAR = 1e-5
"""|step(x) - x| / |x| of a rest point that is compared with where a recurrence ends."""


@dataclass(frozen=True)
class Outcome:
    """What the head says at the end of a way.

    Args:
        top1: share of right answers; an answer that is not finite is wrong.
        agreement: share of images with the same answer as at the end of the model's own way.
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
        return {
            **self.solver_config.to_dict(),
            **{k: v for k, v in vars(self).items() if k not in ("solver_config", "right")},
        }


def step_configs(own: SolverConfig) -> list[SolverConfig]:
    """The model's own solver with other numbers of steps; an adaptive one chooses them itself."""
    return [own.replace(steps=steps) for steps in sorted({*STEPS, own.steps})] if own.is_fixed else [own]


def horizon_configs(own: SolverConfig, stretches: Sequence[float] = STRETCHES) -> list[SolverConfig]:
    """The model's own steps carried on beyond its horizon."""
    return list(dict.fromkeys(own.stretched(stretch) for stretch in stretches))


def solver_configs(own: SolverConfig) -> list[SolverConfig]:
    """Every other fixed-step solver with half, once and twice the steps, up to four times the evaluations."""
    ways = []
    for name in sorted(SOLVERS):
        solver = make_solver(name)
        if name != own.name and isinstance(solver, FixedStepSolver):
            counts = sorted({max(1, own.steps // 2), own.steps, 2 * own.steps})
            ways += [own.replace(name, steps) for steps in counts if steps * solver.evaluations(2) <= 4 * own.steps]
    return ways


def accurate_config(own: SolverConfig) -> SolverConfig:
    """The same equation to a tolerance: does the accuracy survive a more accurate solver? (Ott et al. 2021)."""
    return replace(own, solver=ACCURATE)  # not `but`, which takes a model's own one with its tolerance


def grid_configs(own: SolverConfig) -> list[SolverConfig]:
    """Horizons T/2 to 8T by N/4 to 2N steps of the model's own solver (the paper's Fig. 7)."""
    counts = sorted({max(1, round(own.steps * share)) for share in (0.25, 0.5, 1, 2)})
    return [own.replace(steps=n, horizon=own.horizon * share) for share in (0.5, 1, 2, 4, 8) for n in counts]


@torch.no_grad()
def sweep(
    model: ImageModel,
    batches: Iterable[Mapping[str, Tensor]],
    ways: Iterable[SolverConfig],
    *,
    callback: Callable[[SolverConfig, Tokens, Tokens], None] | None = None,
) -> list[Outcome]:
    """The outcome of every way, in the order given.

    Each image is embedded once. Ways that take the same steps of the same solver share one trajectory, the longest,
    which is read where the shorter ones end: N steps of h are the first N steps of any longer way with that h.

    Args:
        model: in evaluation mode, see `untouched`.
        batches: with class numbers as `labels`, and images as `pixel_values` or, already embedded, as `x0`.
        ways: how to integrate.
        callback: called batch by batch with each config, the state at its end and x(0); configs with the same step size
            come in the order of their length.
    """
    ways, own = list(dict.fromkeys(ways)), model.solver_config
    answers: dict[SolverConfig, list[Tensor]] = {solver_config: [] for solver_config in [own, *ways]}
    evaluations = dict.fromkeys(answers, 0)
    labels: list[Tensor] = []
    for batch in batches:
        x0 = batch["x0"] if "x0" in batch else model.embed(batch["pixel_values"])
        labels.append(batch["labels"].cpu())
        for together in _trajectories(answers):
            for solver_config, state, nfe in _travel(model, x0, together):
                answers[solver_config].append(_answer(model, state).cpu())
                evaluations[solver_config] += nfe * len(x0)
                if callback is not None:
                    callback(solver_config, state, x0)
    if not labels:
        raise ValueError("there are no images to integrate; expected at least one batch")
    true, usual = torch.cat(labels), torch.cat(answers[own])

    def outcome(solver_config: SolverConfig) -> Outcome:
        answer, images = torch.cat(answers[solver_config]), len(true)
        right, same, finite = answer == true, (answer == usual) & (answer >= 0), answer >= 0
        top1, agreement, share = (Proportion.of(mask).value for mask in (right, same, finite))
        return Outcome(solver_config, images, top1, agreement, evaluations[solver_config] / images, share, right=right)

    return [outcome(solver_config) for solver_config in ways]


def _trajectories(ways: Iterable[SolverConfig]) -> list[list[SolverConfig]]:
    """Ways with the same solver and step together, the shortest first; others one by one.

    The cost of an adaptive solve, and of one with memory, is only known for the way that was solved, and the steps of a
    grid that is not uniform are no steps of a longer one.
    """
    groups: dict[object, list[SolverConfig]] = {}
    for solver_config in ways:
        method = solver_config.method
        shared = isinstance(method, FixedStepSolver) and not method.restart and solver_config.grid == "uniform"
        groups.setdefault((solver_config.solver, f"{solver_config.step:.9g}") if shared else solver_config, []).append(
            solver_config
        )
    return [sorted(group, key=lambda solver_config: solver_config.steps) for group in groups.values()]


def _travel(model: ImageModel, x0: Tokens, ways: Sequence[SolverConfig]) -> Iterator[tuple[SolverConfig, Tokens, int]]:
    """Each way with its final state and its evaluations, from one solve of the longest."""
    longest, ends = ways[-1], [solver_config.steps for solver_config in ways]
    if longest.is_fixed and model.field.grid_problems(longest.edges):
        # Steps too long for the field, which has no answer to them.
        yield from ((solver_config, torch.full_like(x0, torch.nan), 0) for solver_config in ways)
        return
    solution = model.depth(x0, longest, save=ends)
    # A solve that gave up has not reached its end; what it did reach is no answer.
    states, spent = dict(zip(ends, solution.states, strict=False)), dict(zip(ends, solution.spent, strict=False))
    lost = torch.full_like(x0, torch.nan)
    for solver_config in ways:
        yield solver_config, states.get(solver_config.steps, lost), spent.get(solver_config.steps, solution.stats.nfe)


def _answer(model: ImageModel, state: Tokens) -> Tensor:
    """The likeliest class of each image, and -1 where the logits are not finite."""
    logits = model.readout(state)
    return torch.where(torch.isfinite(logits).all(dim=-1), logits.argmax(dim=-1), -1)


@dataclass(frozen=True)
class DepthResult:
    """The answers under one meaning of depth."""

    logits: Logits
    evaluations: Tensor
    """Of the field, for each sample."""
    settled: bool
    """Whether the answer was reached: no failure of the solver, and for the equilibrium a rest point."""


@torch.no_grad()
def three_depths(model: ImageModel, x0: Tokens) -> dict[str, DepthResult]:
    """The same weights as an ODE, a recurrent network and an equilibrium model.

    - `ode`: x(T), T the model's own horizon, by an adaptive solver: the equation, and no discretisation of it.
    - `recurrent`: the model's own step, again and again, for eight horizons.
    - `equilibrium`: the fixed point of that step, by Anderson's method.

    Where there is an attractor, the last two agree; the first agrees as far as T is long and the steps are fine. A
    field that knows the time for ever has no rest point: then the third is where the second ends, and not settled.

    Args:
        model: in evaluation mode (see `untouched`).
        x0: embedded images, `model.embed(pixels)`.
    """
    own = model.solver_config
    accurate, fixed = ("dopri5", own.solver) if own.is_fixed else (own.solver, "exponential_euler")
    equation = model.depth(x0, own.replace(solver=accurate, steps=1))
    recurrence = model.depth(x0, own.replace(solver=fixed).stretched(FAR))
    if model.field.autonomous_from == math.inf:
        rest = replace(recurrence, failure="What moves for ever has no rest point.")
    else:  # around the field as it is: no copy of its weights
        rest = EquilibriumDepth(lambda: model.field, own.replace(solver=fixed), tolerance=NEAR)(x0)

    def view(solution: Solution) -> DepthResult:
        alike = torch.full((len(x0),), solution.stats.nfe, device=x0.device)
        evaluations = alike if solution.evaluations is None else solution.evaluations
        return DepthResult(model.readout(solution.state), evaluations, solution.ok)

    return {"ode": view(equation), "recurrent": view(recurrence), "equilibrium": view(rest)}
