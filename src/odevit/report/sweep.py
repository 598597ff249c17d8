"""top-1(solver, N, T): what becomes of the answers when the same weights are integrated in another way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from odevit.analysis.subject import Subject
from odevit.shapes import Tokens
from odevit.solver import SOLVERS, AdaptiveSolver, FixedStepSolver, make_solver

STEPS = (4, 6, 8, 12, 24, 64)
"""How many steps the model's own solver is tried with."""

STRETCHES = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
"""How far beyond its horizon a model is integrated, in horizons."""

ACCURATE = "dopri5"
"""The solver that is more accurate than the one a model was trained with (Ott et al. 2021)."""


@dataclass(frozen=True)
class Way:
    """x(0) -> x(T) in N steps of a solver. An adaptive solver chooses its own steps, whatever N is."""

    solver: str
    steps: int
    horizon: float

    @property
    def step(self) -> float:
        """h = T / N."""
        return self.horizon / self.steps


@dataclass(frozen=True)
class Outcome:
    """What the head says at the end of a way.

    Args:
        solver, steps, horizon: the way.
        images: how many were asked.
        top1: share of right answers; an answer that is not finite is wrong.
        agreement: share of images with the same answer as the model gives by itself.
        nfe: evaluations of the field, in the mean over batches for an adaptive solver.
        finite: share of images with a finite answer at the end of the way.
        stable: whether the step is within the solver's stability limit; None where that was not asked.
        right: which images were answered rightly, for paired comparisons.
    """

    solver: str
    steps: int
    horizon: float
    images: int
    top1: float
    agreement: float
    nfe: float
    finite: float
    stable: bool | None = None
    right: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool), repr=False, compare=False)

    @property
    def way(self) -> Way:
        return Way(self.solver, self.steps, self.horizon)

    def numbers(self) -> dict[str, float | str | bool | None]:
        """Everything but the answer to each single image."""
        return {key: value for key, value in vars(self).items() if key != "right"}


def own_way(subject: Subject) -> Way:
    """How the model integrates by itself."""
    return Way(subject.solver, subject.steps, subject.horizon)


def step_ways(subject: Subject) -> list[Way]:
    """The model's own solver with other numbers of steps; none for an adaptive one, which chooses them itself."""
    if isinstance(make_solver(subject.solver), AdaptiveSolver):
        return [own_way(subject)]
    return [Way(subject.solver, steps, subject.horizon) for steps in sorted({*STEPS, subject.steps})]


def stretch_ways(subject: Subject, stretches: Sequence[float] = STRETCHES) -> list[Way]:
    """The model's own steps carried on beyond its horizon, where a whole number of them leads to."""
    counts = sorted({round(stretch * subject.steps) for stretch in stretches})
    return [Way(subject.solver, steps, subject.horizon * steps / subject.steps) for steps in counts if steps > 0]


def solver_ways(subject: Subject) -> list[Way]:
    """Every other fixed-step solver with half, once and twice the steps, as far as four times the evaluations go."""
    ways = []
    for name in SOLVERS:
        solver = make_solver(name)
        if name == subject.solver or not isinstance(solver, FixedStepSolver):
            continue
        counts = {max(1, subject.steps // 2), subject.steps, 2 * subject.steps}
        affordable = [steps for steps in counts if steps * solver.evaluations(2) <= 4 * subject.steps]
        ways += [Way(name, steps, subject.horizon) for steps in sorted(affordable)]
    return ways


def accurate_way(subject: Subject) -> Way:
    """The same equation to a tolerance: does the accuracy survive a more accurate solver? (Ott et al. 2021)."""
    return Way(ACCURATE, subject.steps, subject.horizon)


def grid_ways(subject: Subject) -> list[Way]:
    """Horizons T/2 to 8T by N/4 to 2N steps of the model's own solver (the paper's Fig. 7)."""
    counts = sorted({max(1, round(subject.steps * share)) for share in (0.25, 0.5, 1, 2)})
    return [Way(subject.solver, n, subject.horizon * share) for share in (0.5, 1, 2, 4, 8) for n in counts]


@torch.no_grad()
def sweep(
    subject: Subject,
    batches: Iterable[Mapping[str, Tensor]],
    ways: Iterable[Way],
    *,
    watch: Callable[[Way, Tokens, Tokens], None] | None = None,
) -> list[Outcome]:
    """The outcome of every way, in the order given.

    Each image is embedded once. Ways that make the same steps of the same solver are one trajectory, the longest,
    read where the shorter ones end: N steps of h are the first N steps of any longer way with that h.

    Args:
        subject: the model taken apart; in evaluation mode, see `untouched`.
        batches: with class numbers as `labels` and the images as `pixel_values`, or as `x0` when they are embedded.
        ways: how to integrate.
        watch: is handed each way with the state at its end and x(0), batch by batch, those with the same steps in the
            order of their length.
    """
    ways = list(dict.fromkeys(ways))
    own = own_way(subject)
    tallies = {way: _Tally() for way in dict.fromkeys([own, *ways])}
    for batch in batches:
        x0 = batch["x0"] if "x0" in batch else subject.embed(batch["pixel_values"])
        labels = batch["labels"]
        answers: dict[Way, Tensor] = {}
        for trajectory in _trajectories([*tallies]):
            for way, state, nfe in trajectory.travel(subject, x0):
                answers[way] = _answer(subject, state)
                tallies[way].nfe += nfe * len(labels)
                if watch is not None:
                    watch(way, state, x0)
        for way, answer in answers.items():
            tallies[way].add(answer, labels, answers[own])
    if not tallies[own].right:
        raise ValueError("there are no images to integrate; expected at least one batch")
    return [tallies[way].outcome(way) for way in ways]


@dataclass(frozen=True)
class _Trajectory:
    """The ways that one solve serves."""

    ways: tuple[Way, ...]

    def travel(self, subject: Subject, x0: Tokens) -> Iterable[tuple[Way, Tokens, int]]:
        """Each way with its last state and what it cost, the shortest first."""
        longest = self.ways[-1]
        kept = [way.steps for way in self.ways]
        solution = subject.solve(
            x0, solver=longest.solver, steps=longest.steps, horizon=longest.step * longest.steps, save=kept
        )
        # A solve that gave up has not reached its end; what it did reach is no answer.
        states = dict(zip(kept, solution.states, strict=False))
        lost = torch.full_like(x0, torch.nan)
        for way in self.ways:
            yield way, states.get(way.steps, lost), solution.stats.nfe * way.steps // longest.steps


def _trajectories(ways: Iterable[Way]) -> list[_Trajectory]:
    """Ways with the same solver and step in one; each way of an adaptive solver, whose cost depends on it, alone."""
    groups: dict[object, list[Way]] = {}
    for way in ways:
        alone = isinstance(make_solver(way.solver), AdaptiveSolver)
        groups.setdefault(way if alone else (way.solver, f"{way.step:.9g}"), []).append(way)
    return [_Trajectory(tuple(sorted(group, key=lambda way: way.steps))) for group in groups.values()]


def _answer(subject: Subject, state: Tokens) -> Tensor:
    """The likeliest class of each image, and -1 for an answer that is not finite."""
    logits = subject.logits(state)
    return torch.where(torch.isfinite(logits).all(dim=-1), logits.argmax(dim=-1), -1)


class _Tally:
    """What is counted of one way, batch by batch."""

    def __init__(self) -> None:
        self.right: list[Tensor] = []
        self.same: list[Tensor] = []
        self.finite: list[Tensor] = []
        self.nfe = 0

    def add(self, answer: Tensor, labels: Tensor, own: Tensor) -> None:
        self.right.append((answer == labels).cpu())
        self.same.append(((answer == own) & (answer >= 0)).cpu())
        self.finite.append((answer >= 0).cpu())

    def outcome(self, way: Way) -> Outcome:
        right = torch.cat(self.right)
        return Outcome(
            way.solver,
            way.steps,
            way.horizon,
            images=len(right),
            top1=_share(right),
            agreement=_share(torch.cat(self.same)),
            nfe=self.nfe / len(right),
            finite=_share(torch.cat(self.finite)),
            right=right,
        )


def _share(hits: Tensor) -> float:
    return hits.double().mean().item()
