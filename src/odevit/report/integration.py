"""One pass over the images: where they end, how fast they still move, and what other ways of integrating say."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from odevit.analysis.subject import Subject
from odevit.report.limits import Limits
from odevit.report.plain import quantiles
from odevit.report.sample import Sample
from odevit.report.significance import Share, paired_error
from odevit.report.sweep import (
    Outcome,
    Way,
    accurate_way,
    grid_ways,
    own_way,
    solver_ways,
    step_ways,
    stretch_ways,
    sweep,
)
from odevit.shapes import Tokens
from odevit.solver import FixedStepSolver, make_solver

FAR = 8
"""Horizons after which a trajectory should have come to rest, if it ever does."""

FEWEST, MOST = 6, 64
"""Steps of the model's own solver between which its answers are compared."""


@dataclass(frozen=True)
class Passage:
    """What one pass over all images gives.

    Args:
        outcomes: of every way, by way.
        final: states at the model's own horizon, portion by portion.
        rest: states at `FAR` horizons, integrated with the model's own steps.
        logits: at the model's own horizon [image, label].
        speed: |x_{n+1} - x_n| / (h |x_n|) at each of `times`, for every image [time, image].
        times: in the middle of those steps.
    """

    outcomes: dict[Way, Outcome]
    final: list[Tokens]
    rest: list[Tokens]
    logits: Tensor
    speed: Tensor
    times: tuple[float, ...]


def pass_over(subject: Subject, sample: Sample) -> Passage:
    """Integrate every image in all ways that are tried on all of them.

    The velocity is that of the steps which the model makes, not f(x): a splitting comes to rest near the rest point
    of its equation and not in it, where f is not zero.
    """
    own, far = own_way(subject), FAR * subject.steps
    read = _read(subject)
    final: list[Tokens] = []
    rest: list[Tokens] = []
    logits: list[Tensor] = []
    speeds: dict[int, list[Tensor]] = {}
    before: tuple[int, Tokens] = (0, torch.empty(0))

    def watch(way: Way, state: Tokens, x0: Tokens) -> None:
        nonlocal before
        if way not in read:
            return
        n, last = (0, x0) if way.steps == 1 else before
        if way.steps == n + 1:
            moved = (state - last).flatten(1).norm(dim=1) / last.flatten(1).norm(dim=1).clamp_min(1e-30)
            speeds.setdefault(n, []).append(moved.cpu() / way.step)
        before = (way.steps, state)
        if way == own:
            final.append(state)
            logits.append(subject.logits(state).float().cpu())
        if way.steps == far:
            rest.append(state)

    ways = [own, *read, *step_ways(subject), *stretch_ways(subject)]
    found = sweep(subject, sample.chunks, ways, watch=watch)
    step = own.step
    return Passage(
        outcomes={each.way: each for each in found},
        final=final,
        rest=rest,
        logits=torch.cat(logits),
        speed=torch.stack([torch.cat(speeds[n]) for n in sorted(speeds)]),
        times=tuple((n + 0.5) * step for n in sorted(speeds)),
    )


def _read(subject: Subject) -> list[Way]:
    """Where the model's own steps, carried on to `FAR` horizons, are read: every step up to the horizon, then pairs."""
    N = subject.steps
    pairs = [round(N * stretch) for stretch in (1.25, 1.5, 2, 3, 4, 5, 6, 7, FAR)]
    counts = sorted({*range(1, N + 1), *pairs, *(n - 1 for n in pairs)} - {0})
    return [Way(subject.solver, n, subject.horizon * n / N) for n in counts]


def sweep_numbers(
    subject: Subject, sample: Sample, passage: Passage, limits: Limits, few: int, some: int
) -> dict[str, Any]:
    """Accuracy against steps, solvers, horizons and stopping times, with how much each group of ways differs.

    Args:
        subject: the model taken apart.
        sample: all images.
        passage: what the pass over all of them gave.
        limits: beyond which a way is marked and not counted.
        few: how many images are tried with the other solvers and with the grid of horizons by steps.
        some: how many with the more accurate solver.
    """
    seen = passage.outcomes
    own = seen[own_way(subject)]
    both = sweep(subject, sample.first(some), [own_way(subject), accurate_way(subject)])
    coarse, accurate = both[0], both[-1]  # one and the same for a model with the accurate solver
    steps = limits.marked([seen[way] for way in step_ways(subject)])
    horizons = [seen[way] for way in stretch_ways(subject)]
    stops = [seen[way] for way in _read(subject) if way.steps <= subject.steps]
    solvers = limits.marked(sweep(subject, sample.first(few), [own_way(subject), *solver_ways(subject)]))
    grid = limits.marked(sweep(subject, sample.first(few), grid_ways(subject)))
    return {
        "own": own.numbers(),
        "top1": Share(int(own.right.sum()), own.images).numbers(),
        "steps": [each.numbers() for each in steps],
        "horizons": [each.numbers() for each in horizons],
        "stops": [each.numbers() for each in stops],
        "solvers": [each.numbers() for each in solvers],
        "accurate": {
            **accurate.numbers(),
            "difference": accurate.top1 - coarse.top1,
            "error": paired_error(accurate.right, coarse.right),
        },
        "grid": [each.numbers() for each in grid],
        # A step that is too long for its solver, and a solver that rests beside the equation, say something of the
        # solver; such ways are shown and not counted.
        "spreads": {
            "steps": spread([each for each in steps if FEWEST <= each.steps <= MOST and _counts(each, own)]),
            "solvers": spread([each for each in solvers if _counts(each, own) and _rests(each, own)]),
            "horizons": spread(horizons),
        },
    }


def _counts(outcome: Outcome, own: Outcome) -> bool:
    return bool(outcome.stable) or outcome.way == own.way


def _rests(outcome: Outcome, own: Outcome) -> bool:
    solver = make_solver(outcome.solver)
    return outcome.way == own.way or (isinstance(solver, FixedStepSolver) and solver.rests_with_equation)


def spread(outcomes: Sequence[Outcome]) -> dict[str, Any] | None:
    """max top-1 - min top-1 over ways on the same images, with the standard error of that one difference.

    The largest of several differences is larger than a typical one even where none is real: the error is that of the
    two ways shown, and does not know that they were picked.
    """
    if len(outcomes) < 2:
        return None
    lowest, highest = (choose(outcomes, key=lambda each: each.top1) for choose in (min, max))
    return {
        "ways": len(outcomes),
        "images": highest.images,
        "steps": [min(each.steps for each in outcomes), max(each.steps for each in outcomes)],
        "difference": highest.top1 - lowest.top1,
        "error": paired_error(highest.right, lowest.right),
        "lowest": lowest.numbers(),
        "highest": highest.numbers(),
        "agreement": min(each.agreement for each in outcomes),
    }


def speed_numbers(subject: Subject, passage: Passage) -> dict[str, Any]:
    """Median and middle 90% of the relative speed at each time, and what is left of it at the end."""
    bands = [quantiles(each, 0.05, 0.5, 0.95) for each in passage.speed]
    low, middle, high = (list(each) for each in zip(*bands, strict=True))
    return {
        "images": passage.speed.shape[1],
        "times": list(passage.times),
        "low": low,
        "median": middle,
        "high": high,
        "horizon": subject.horizon,
        "change_per_horizon": middle[-1] * subject.horizon,
        "falls": all(b <= a for a, b in itertools.pairwise(middle)),
    }


def answer_numbers(sample: Sample, passage: Passage) -> dict[str, Any]:
    """Each image's label, answer and margin p_1 - p_2 at the model's own horizon, and the accuracy of each class."""
    best = passage.logits.softmax(dim=-1).topk(2, dim=-1)
    labels, answers = sample.labels, best.indices[:, 0]
    classes = {}
    for label in labels.unique().tolist():
        among = labels == label
        hits = Share(int((answers[among] == label).sum()), int(among.sum()))
        classes[label] = {"name": sample.classes[label], **hits.numbers()}
    return {
        "images": sample.numbers,
        "labels": labels,
        "answers": answers,
        "margins": best.values[:, 0] - best.values[:, 1],
        "classes": classes,
    }
