"""top-1(solver, N, T): what becomes of the answers in another way; h |lambda| < z: where that is the solver's doing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from odevit.analysis.linearisation import jacobian
from odevit.analysis.significance import Share
from odevit.analysis.untouched import measurable
from odevit.field.dynamics import Field
from odevit.model import Askable
from odevit.objectives.vectors import norms, random_normal, units
from odevit.solver import SOLVERS, AdaptiveSolver, FixedStepSolver, Multistep, RungeKutta, Tableau, Way, make_solver
from odevit.tokens import Tokens

STEPS = (4, 6, 8, 12, 24, 64)
"""Numbers of steps that the model's own solver is tried with."""
STRETCHES = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
"""How far beyond its horizon a model is integrated, in horizons."""
ACCURATE = "dopri5"
"""The solver that is more accurate than the one a model was trained with (Ott et al. 2021)."""


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

    way: Way
    images: int
    top1: float
    agreement: float
    nfe: float
    finite: float
    stable: bool | None = None
    right: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool), repr=False, compare=False)

    def numbers(self) -> dict[str, float | str | bool | None]:
        """Everything except the answers to the single images."""
        return {**self.way.numbers(), **{k: v for k, v in vars(self).items() if k not in ("way", "right")}}


def step_ways(own: Way) -> list[Way]:
    """The model's own solver with other numbers of steps; an adaptive one chooses them itself."""
    return [own.but(steps=steps) for steps in sorted({*STEPS, own.steps})] if own.is_fixed else [own]


def stretch_ways(own: Way, stretches: Sequence[float] = STRETCHES) -> list[Way]:
    """The model's own steps carried on beyond its horizon."""
    return list(dict.fromkeys(own.times(stretch) for stretch in stretches))


def solver_ways(own: Way) -> list[Way]:
    """Every other fixed-step solver with half, once and twice the steps, up to four times the evaluations."""
    ways = []
    for name in sorted(SOLVERS):
        solver = make_solver(name)
        if name != own.name and isinstance(solver, FixedStepSolver):
            counts = sorted({max(1, own.steps // 2), own.steps, 2 * own.steps})
            ways += [own.but(name, steps) for steps in counts if steps * solver.evaluations(2) <= 4 * own.steps]
    return ways


def accurate_way(own: Way) -> Way:
    """The same equation to a tolerance: does the accuracy survive a more accurate solver? (Ott et al. 2021)."""
    return replace(own, solver=ACCURATE)  # not `but`, which takes a model's own one with its tolerance


def grid_ways(own: Way) -> list[Way]:
    """Horizons T/2 to 8T by N/4 to 2N steps of the model's own solver (the paper's Fig. 7)."""
    counts = sorted({max(1, round(own.steps * share)) for share in (0.25, 0.5, 1, 2)})
    return [own.but(steps=n, horizon=own.horizon * share) for share in (0.5, 1, 2, 4, 8) for n in counts]


@torch.no_grad()
def sweep(
    model: Askable,
    batches: Iterable[Mapping[str, Tensor]],
    ways: Iterable[Way],
    *,
    watch: Callable[[Way, Tokens, Tokens], None] | None = None,
) -> list[Outcome]:
    """The outcome of every way, in the order given.

    Each image is embedded once. Ways that take the same steps of the same solver share one trajectory, the longest,
    which is read where the shorter ones end: N steps of h are the first N steps of any longer way with that h.

    Args:
        model: in evaluation mode, see `untouched`.
        batches: with class numbers as `labels`, and images as `pixel_values` or, already embedded, as `x0`.
        ways: how to integrate.
        watch: is handed each way with the state at its end and x(0), batch by batch; ways with the same steps come in
            the order of their length.
    """
    ways, own = list(dict.fromkeys(ways)), model.way
    answers: dict[Way, list[Tensor]] = {way: [] for way in [own, *ways]}
    evaluations = dict.fromkeys(answers, 0)
    labels: list[Tensor] = []
    for batch in batches:
        x0 = batch["x0"] if "x0" in batch else model.embed(batch["pixel_values"])
        labels.append(batch["labels"].cpu())
        for together in _trajectories(answers):
            for way, state, nfe in _travel(model, x0, together):
                answers[way].append(_answer(model, state).cpu())
                evaluations[way] += nfe * len(x0)
                if watch is not None:
                    watch(way, state, x0)
    if not labels:
        raise ValueError("there are no images to integrate; expected at least one batch")
    true, usual = torch.cat(labels), torch.cat(answers[own])

    def outcome(way: Way) -> Outcome:
        answer, images = torch.cat(answers[way]), len(true)
        right, same, finite = answer == true, (answer == usual) & (answer >= 0), answer >= 0
        top1, agreement, share = (Share.of(mask).value for mask in (right, same, finite))
        return Outcome(way, images, top1, agreement, evaluations[way] / images, share, right=right)

    return [outcome(way) for way in ways]


def _trajectories(ways: Iterable[Way]) -> list[list[Way]]:
    """Ways with the same solver and step together, the shortest first; others one by one.

    The cost of an adaptive solve, and of one with memory, is only known for the way that was solved, and the steps of a
    grid that is not uniform are no steps of a longer one.
    """
    groups: dict[object, list[Way]] = {}
    for way in ways:
        method = way.method
        shared = isinstance(method, FixedStepSolver) and not method.restart and way.grid == "uniform"
        groups.setdefault((way.solver, f"{way.step:.9g}") if shared else way, []).append(way)
    return [sorted(group, key=lambda way: way.steps) for group in groups.values()]


def _travel(model: Askable, x0: Tokens, ways: Sequence[Way]) -> Iterator[tuple[Way, Tokens, int]]:
    """Each way with its final state and its evaluations, from one solve of the longest."""
    longest, ends = ways[-1], [way.steps for way in ways]
    if longest.is_fixed and model.field.refusals(longest.edges):
        # Steps too long for the field, which has no answer to them.
        yield from ((way, torch.full_like(x0, torch.nan), 0) for way in ways)
        return
    solution = model.depth(x0, longest, save=ends)
    # A solve that gave up has not reached its end; what it did reach is no answer.
    states, spent = (dict(zip(ends, kept, strict=False)) for kept in (solution.states, solution.spent))
    lost = torch.full_like(x0, torch.nan)
    for way in ways:
        yield way, states.get(way.steps, lost), spent.get(way.steps, solution.stats.nfe)


def _answer(model: Askable, state: Tokens) -> Tensor:
    """The likeliest class of each image, and -1 where the logits are not finite."""
    logits = model.readout(state)
    return torch.where(torch.isfinite(logits).all(dim=-1), logits.argmax(dim=-1), -1)


@dataclass(frozen=True)
class Limits:
    """h < z / |lambda|: the longest stable step of each solver.

    lambda is the largest eigenvalue of the Jacobian where the trajectories come to rest, and z the end of the interval
    of absolute stability: 2 for Euler, midpoint and Heun, 2.785 for RK4, 1 and 6/11 for methods with memory of order 2
    and 3. That is exact for a real lambda and a rule of thumb otherwise. Splittings and exponential methods solve the
    leak exactly; only the eigenvalues of the remainder limit them, and z = 2 is on the safe side for those that have no
    memory. Adaptive solvers choose a stable step themselves.

    Args:
        radius: |lambda| of the whole field.
        forcing: |lambda| without the leak.
        images: how many were measured; both numbers are the largest among them.
    """

    radius: float
    forcing: float
    images: int

    def longest(self, solver: str) -> float:
        """The longest stable step of a solver; infinite for an adaptive one."""
        method = make_solver(solver)
        if isinstance(method, AdaptiveSolver):
            return float("inf")
        if isinstance(method, RungeKutta):
            return stability_interval(method.tableau) / max(self.radius, 1e-12)
        if isinstance(method, Multistep):
            return method.interval / max(self.forcing if method.solves_leak else self.radius, 1e-12)
        return 2.0 / max(self.forcing, 1e-12)

    def marked(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """The same outcomes, marked as stable where the step is within the limit."""
        return [replace(outcome, stable=outcome.way.step < self.longest(outcome.way.name)) for outcome in outcomes]


def measure_limits(field: Field, rest: Tokens, x0: Tokens, t: float = 0.0) -> Limits:
    """|lambda| = lim |J^n v|^{1/n} at rest points, with and without the leak; the largest over the images.

    The Lipschitz constant |J|_2 is never less than |lambda| and can be far larger when J is not normal: used as the
    limit it would refuse steps that are stable.

    Args:
        field: f.
        rest: states where trajectories came to rest.
        x0: where those started.
        t: the time, for a field that depends on it.
    """
    dynamics = measurable(field, x0)
    whole = _spectral_radius(lambda x: dynamics(x, t), rest)
    forcing = _spectral_radius(lambda x: dynamics.forcing(x, t), rest) if dynamics.leak else whole
    return Limits(whole.max().item(), forcing.max().item(), len(rest))


@functools.cache
def stability_interval(tableau: Tableau) -> float:
    """The largest z < 100 with |R(-y)| <= 1 for all y in [0, z], R(y) = 1 + y b^T (1 - y A)^{-1} 1, within 1e-4."""
    y = -torch.arange(0, 100, 1e-4, dtype=torch.float64)
    slopes: list[Tensor] = []
    for weights in tableau.a:
        slopes.append(1.0 + y * sum(w * k for w, k in zip(weights, slopes, strict=True)))
    growth = 1.0 + y * sum(w * k for w, k in zip(tableau.b, slopes, strict=True))
    unstable = (growth.abs() > 1.0 + 1e-12).nonzero()
    return -y[unstable[0] - 1].item() if len(unstable) else 100.0


@torch.no_grad()
def _spectral_radius(velocity: Callable[[Tensor], Tensor], x: Tensor, iterations: int = 40) -> Tensor:
    """Growth of a vector under the Jacobian, averaged over half of the iterations: that captures a complex pair too."""
    v, growth, (push, _) = random_normal(x.shape, seed=0).to(x), [], jacobian(velocity, x.detach())
    for _ in range(iterations):
        v = push(units(v))
        growth.append(norms(v).clamp_min(1e-30).log())
    return torch.stack(growth[iterations // 2 :]).mean(dim=0).exp()
