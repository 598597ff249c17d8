"""L, |x_n - x(t_n)| and r: how steep the field is, how far the steps are from it, how much the answer tolerates."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from odevit.analysis.approximation import approximation_error
from odevit.analysis.attention_bound import attention_bound
from odevit.analysis.contraction import contraction_radius
from odevit.analysis.lipschitz import local_lipschitz
from odevit.analysis.subject import Subject
from odevit.field import CosineAttention, DotProductAttention, Dynamics, VectorField
from odevit.field.branch import Branch
from odevit.report.exponents import solver_of
from odevit.report.integration import Passage
from odevit.report.limits import Limits, measure_limits
from odevit.report.plain import quantiles
from odevit.report.sample import Sample
from odevit.report.significance import Share
from odevit.shapes import Tokens

PROBES = 5
"""Times along the path at which the field is looked at."""


def limit_numbers(limits: Limits, solvers: list[str]) -> dict[str, Any]:
    """|lambda| and the longest stable step of each solver."""
    return {**vars(limits), "longest": {name: limits.longest(name) for name in solvers}}


def rest_limits(subject: Subject, sample: Sample, passage: Passage, images: int) -> Limits:
    """Stability limits of the solvers, from the eigenvalues where a few images have come to rest."""
    x0 = next(iter(sample.first(images)))["x0"]
    return measure_limits(subject.field, passage.rest[0][: len(x0)], x0, subject.horizon)


def lipschitz_numbers(subject: Subject, sample: Sample, images: int) -> dict[str, Any]:
    """|df/dx| along the path; of attention alone also beside the bound of it, which costs no derivative."""
    x0 = next(iter(sample.first(images)))["x0"]
    spots = sorted({round(subject.steps * i / (PROBES - 1)) for i in range(PROBES)})
    solution = subject.solve(x0, save=spots)
    rows = []
    for t, state in zip(solution.times, solution.states, strict=True):
        whole = local_lipschitz(subject.field, state, t, x0=x0, iterations=20)
        row = {"time": t, "field": _summary(whole.value), "unsettled": whole.error.max().item()}
        inner = _attention(subject, state, t)
        if inner is not None:
            dynamics, y = inner
            row["attention"] = _summary(local_lipschitz(dynamics, y, iterations=20).value)
            # Singular values of what is not finite are an error, not a number.
            finite = y[y.flatten(1).isfinite().all(dim=1)]
            row["attention_bound"] = _summary(attention_bound(cast(VectorField, subject.field).attention, finite))
        rows.append(row)
    return {"images": len(x0), "rows": rows}


def approximation_numbers(subject: Subject, sample: Sample, images: int) -> dict[str, Any]:
    """How far the model's steps are from its equation, against bounds (8) and (11).

    The bounds are about Euler's method, which is therefore measured as well; a splitting is another method of the same
    order.
    """
    x0 = next(iter(sample.first(images)))["x0"]
    size = x0.flatten(1).norm(dim=1)
    found: dict[str, Any] = {"images": len(x0), "solvers": {}}
    for solver in dict.fromkeys([solver_of(subject), "euler"]):
        each = approximation_error(
            subject.field, x0, solver=solver, steps=subject.steps, horizon=subject.horizon, probes=3
        )
        found["solvers"][solver] = {
            "times": list(each.times),
            "error": each.error.median(dim=1).values,
            "final": _summary(each.error[-1]),
            "relative": _summary(each.error[-1] / size),
            "largest": _summary(each.largest),
            "reference_error": each.reference_error.amax().item(),
        }
        found["curvature"] = _summary(each.curvature.value)
        found["lipschitz"] = _summary(each.lipschitz.value)
        found["bound_8"] = _summary(each.bound)
        found["bound_8_assumed"] = _summary(each.assumed_bound)
        found["bound_11"] = None if each.weight_bound is None else each.weight_bound.item()
    return found


def radius_numbers(subject: Subject, sample: Sample, passage: Passage, images: int, seed: int = 0) -> dict[str, Any]:
    """The contraction radius at the horizon beside the margin and beside the way still to go to rest."""
    values, medians, sizes, moves, answers, rivals = [], [], [], [], [], []
    for chunk, final, rest in zip(sample.first(images), passage.final, passage.rest, strict=False):
        count = len(chunk["labels"])
        state = final[:count]
        found = contraction_radius(subject.logits, state, seed=seed)
        values.append(found.value.cpu())
        medians.append(found.median.cpu())
        sizes.append(state.flatten(1).norm(dim=1).cpu())
        moves.append((rest[:count] - state).flatten(1).norm(dim=1).cpu())
        answers.append(found.answer.cpu())
        rivals.append(found.rival.cpu())
    radius, size, move = torch.cat(values), torch.cat(sizes), torch.cat(moves)
    best = passage.logits[: len(radius)].softmax(dim=-1).topk(2, dim=-1).values
    return {
        "images": len(radius),
        "radius": radius,
        "relative": radius / size,
        "random": torch.cat(medians) / size,
        "margin": best[:, 0] - best[:, 1],
        "right": torch.cat(answers) == sample.labels[: len(radius)],
        "move": move / size,
        "found": Share(int(radius.isfinite().sum()), len(radius)).numbers(),
        "inside": Share(int((move < radius).sum()), len(radius)).numbers(),
        "quantiles": dict(zip(("5%", "50%", "95%"), quantiles(radius / size, 0.05, 0.5, 0.95), strict=True)),
        "random_median": quantiles(torch.cat(medians) / size, 0.5)[0],
        "move_median": quantiles(move / size, 0.5)[0],
    }


def _attention(subject: Subject, state: Tokens, t: float) -> tuple[Dynamics, Tokens] | None:
    """G alone, without its norm, and what it is given; None for fields whose attention has no such bound."""
    field = subject.field
    if not isinstance(field, VectorField) or not isinstance(field.attention, DotProductAttention):
        return None
    if isinstance(field.attention, CosineAttention):
        return None
    branch = cast(Branch, field.components["attention"])
    y = branch.norm(state)
    y = y if branch.time is None else branch.time(y, t)
    body = branch.body
    return Dynamics({"attention": lambda x, _, observer: body(x, None, observer)}, anchor=y), y


def _summary(values: Tensor) -> dict[str, float]:
    low, middle, high = quantiles(values, 0.0, 0.5, 1.0)
    return {"smallest": low, "median": middle, "largest": high}
