"""L, |x_n - x(t_n)| and r: Lipschitz constants, the error of the steps, the contraction radius."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from odevit.analysis.approximation import approximation_error
from odevit.analysis.contraction import contraction_radius
from odevit.analysis.lipschitz import attention_bound, local_lipschitz
from odevit.analysis.lyapunov import with_fixed_steps
from odevit.analysis.significance import PERCENTILES, Proportion, median, quantiles
from odevit.core.base import Dynamics, Field
from odevit.core.field import Branch, VectorField
from odevit.objectives.bounds import dot_product
from odevit.objectives.vectors import norms
from odevit.plotting import BLUE, GREEN, ORANGE, finish_figure, make_figure, nan_for_none
from odevit.report.page import band, of_norm, share_of, small_share, span
from odevit.report.section import SECTIONS, Figures, Numbers, Section, Verdict
from odevit.report.study import Study
from odevit.tokens import Tokens

PROBES = 5
"""Times along the path at which Lipschitz constants are measured."""
RANGE = {"smallest": 0.0, "median": 0.5, "largest": 1.0}
"""Quantiles of constants and errors."""
TOLERANT = 0.95
"""The head tolerates the rest of the path if it is shorter than the radius for at least this share of the states."""


@SECTIONS.register("smoothness")
class Smoothness(Section):
    """Lipschitz constants, the error of the steps, the contraction radius."""

    title = "How steep, how exact, how tolerant?"
    order = 60
    thresholds = (
        f"The head tolerates the rest of the path if the radius exceeds its length for at least {TOLERANT:.0%} of the "
        "states.",
    )

    text = """
{% call picture("lipschitz") %}Median and range of {{ lipschitz.images }} images, by power iteration. The bound is
computed from the attention map, for attention without the norm before it.{% endcall %}
{% call table("distance from the exact solution at the horizon", "median", "largest", "of the norm") %}
{% for solver, error in approximation.solvers.items() %}
{{ row((solver | words) ~ ", measured", error.final.median | number, error.final.largest | number,
       error.relative.median | percent) }}
{% endfor %}
{% for name, bound in (("L and C as measured", approximation.bound_8),
                       ("L = 0.5 as the paper assumes", approximation.bound_8_assumed)) %}
{{ row("eq. (8), " ~ name, bound.median | number, bound.largest | number, "") }}
{% endfor %}
{% if approximation.bound_11 is not none %}
{{ row("eq. (11), from the weights", approximation.bound_11 | number, "", "") }}
{% endif %}
{% endcall %}
{% call small() %}{{ approximation.images }} images, against RK4 with eight steps in place of each one. Equation (8)
with measured constants holds for Euler's method; it grows like e to the power LT, ignores contraction, and is rarely
informative. With an assumed L, and for eq. (11), the numbers are not bounds.{% endcall %}
{% call picture("radius") %}{{ radius.images }} states at the horizon. A displacement of this length changes the answer;
a shorter one may do so too.{% endcall %}
"""

    def measure(self, study: Study) -> dict[str, Any]:
        return {
            "lipschitz": lipschitz_numbers(study),
            "approximation": approximation_numbers(study),
            "radius": radius_numbers(study),
        }

    def draw(self, numbers: Numbers, pictures: Tensor) -> Figures:
        return {"lipschitz": draw_lipschitz(numbers["lipschitz"]["rows"]), "radius": draw_radius(numbers["radius"])}

    def judge(self, numbers: Numbers) -> list[Verdict]:
        """How far may a state be moved before the answer changes?"""
        question, radius = "How far may a state be moved before the answer changes?", numbers["radius"]
        low, median, high = (radius["quantiles"][key] for key in ("5%", "50%", "95%"))
        if median is None:
            return [Verdict(question, "unknown", None, ("No disturbance that was tried changed an answer.",))]
        good = radius["inside"]["value"] >= TOLERANT
        random = (
            "in random directions no distance that was tried changed the median answer."
            if radius["random_median"] is None
            else f"in a random direction by {of_norm(radius['random_median'])}."
        )
        conclusion = (
            "it cannot change those answers, in any direction."
            if good
            else "so some answers may change between one horizon and eight; those that do are counted above."
        )
        sentences = (
            f"In the worst direction by {of_norm(median)} (median of {radius['images']} images; the middle 90%: "
            f"{span(small_share(low), small_share(high))}); {random}",
            f"From one horizon to eight, the state moves by {of_norm(radius['move_median'])} in the median, which is "
            f"less than that radius for {share_of(radius['inside'])} of them: {conclusion}",
        )
        return [Verdict(question, of_norm(median), True if good else None, sentences)]


def lipschitz_numbers(study: Study) -> dict[str, Any]:
    """|df/dx| along the path, of the whole field and of attention alone, and the bound of the latter."""
    x0, field, solver_config = study.sample.start(study.sizes.lipschitz), study.model.field, study.solver_config
    solution = study.model.follow(
        x0, save=sorted({round(solver_config.steps * i / (PROBES - 1)) for i in range(PROBES)})
    )
    rows = []
    for t, state in zip(solution.times, solution.states, strict=True):
        whole = local_lipschitz(field, state, t, x0=x0, iterations=20)
        row = {"time": t, "field": quantiles(whole.value, RANGE), "unsettled": whole.error.max()}
        if inner := _attention_alone(field, state, t):
            dynamics, y = inner
            row["attention"] = quantiles(local_lipschitz(dynamics, y, iterations=20).value, RANGE)
            # torch raises an error for singular values of a matrix that is not finite.
            finite = y[y.flatten(1).isfinite().all(dim=1)]
            row["attention_bound"] = quantiles(attention_bound(cast(VectorField, field.at(t)).attention, finite), RANGE)
        rows.append(row)
    return {"images": len(x0), "rows": rows}


def approximation_numbers(study: Study) -> dict[str, Any]:
    """The distance of the model's steps from its equation, and bounds (8) and (11).

    The bounds hold for Euler's method, which is therefore measured as well.
    """
    x0, solver_config = study.sample.start(study.sizes.approximation), with_fixed_steps(study.solver_config)
    numbers: dict[str, Any] = {"images": len(x0), "solvers": {}}
    for solver in dict.fromkeys([solver_config.name, "euler"]):
        measured = approximation_error(
            study.model.field, x0, solver=solver, steps=solver_config.steps, horizon=solver_config.horizon, probes=3
        )
        numbers["solvers"][solver] = {
            "times": measured.times,
            "error": measured.error.median(dim=1).values,
            "final": quantiles(measured.error[-1], RANGE),
            "relative": quantiles(measured.error[-1] / norms(x0), RANGE),
            "largest": quantiles(measured.largest, RANGE),
            "reference_error": measured.reference_error.amax(),
        }
    return numbers | {
        "curvature": quantiles(measured.curvature.value, RANGE),
        "lipschitz": quantiles(measured.lipschitz.value, RANGE),
        "bound_8": quantiles(measured.bound, RANGE),
        "bound_8_assumed": quantiles(measured.assumed_bound, RANGE),
        "bound_11": measured.weight_bound,
    }


def radius_numbers(study: Study) -> dict[str, Any]:
    """The contraction radius at the horizon, the margin, and the distance from there to rest."""
    parts = []
    forward_cache, sample = study.forward_cache, study.sample
    for chunk, final, rest in zip(
        sample.first(study.sizes.radius), forward_cache.final, forward_cache.rest, strict=False
    ):
        state = final[: len(chunk["labels"])]
        radius = contraction_radius(study.model.readout, state, seed=study.seed)
        lengths = (radius.value, radius.median, norms(state), norms(rest[: len(state)] - state))
        parts.append(torch.stack(lengths).cpu())
    radii, random, size, move = torch.cat(parts, dim=1)
    n = len(radii)
    return {
        "images": n,
        "radius": radii,
        "relative": radii / size,
        "random": random / size,
        "margin": study.answers["margins"][:n],
        "right": (study.answers["answers"] == sample.labels)[:n],
        "move": move / size,
        "found": Proportion.of(radii.isfinite()),
        "inside": Proportion.of(move < radii),
        "quantiles": quantiles(radii / size, PERCENTILES),
        "random_median": median(random / size),
        "move_median": median(move / size),
    }


def draw_lipschitz(rows: list[Numbers]) -> Figure:
    """Local Lipschitz constants along the path: the field, attention alone, and its bound."""
    figure, (axes,) = make_figure(3.4)
    times = [row["time"] for row in rows]
    for key, name, colour, style in (
        ("field", "whole field, measured", BLUE, "-"),
        ("attention", "attention alone, measured", GREEN, "-"),
        ("attention_bound", "attention alone, bound from its map", ORANGE, "--"),
    ):
        if key in rows[0]:
            lines = {end: [row[key][end] for row in rows] for end in RANGE}
            band(axes, times, lines, *RANGE, color=colour, linestyle=style, marker="o", markersize=5, label=name)
    axes.set(xlabel="time t", ylabel="|df/dx| (1 / unit of time)", ylim=(0, None))
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    steepness = nan_for_none(row["field"]["median"] for row in rows)
    steep = span(f"{min(steepness):.1f}", f"{max(steepness):.1f}")
    return finish_figure(figure, f"Lipschitz constant along the path: {steep} in the median")


def draw_radius(radius: Numbers) -> Figure:
    """The distance to another answer against the margin of the head."""
    figure, (axes,) = make_figure(3.8)
    values, margins = (np.array(nan_for_none(radius[key])) for key in ("relative", "margin"))
    right = np.array(radius["right"], bool)
    for among, name, colour, marker in ((right, "answered rightly", BLUE, "o"), (~right, "wrongly", ORANGE, "X")):
        style = {"s": 34, "color": colour, "marker": marker, "alpha": 0.8, "linewidth": 0}
        axes.scatter(margins[among], 100 * values[among], label=name, **style)
    axes.set(
        xlabel="margin of the head, p₁ − p₂",
        ylabel="shortest distance to another answer\n(% of the norm of the state)",
        ylim=(0, None),
    )
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, loc="upper left")
    median = radius["quantiles"]["50%"]
    result = "no disturbance changed an answer" if median is None else f"{100 * median:.2g}% of the norm in the median"
    return finish_figure(figure, f"Contraction radius at the horizon: {result} ({radius['images']} images)")


def _attention_alone(field: Field, state: Tokens, t: float) -> tuple[Dynamics, Tokens] | None:
    """G alone, without its norm, and its input; None for fields whose attention has no such bound."""
    now = field.at(t)
    if not isinstance(now, VectorField) or dot_product(now.attention) is None:
        return None
    branch = cast(Branch, now.components["attention"])
    y = branch.norm(state)
    y = y if branch.time is None else branch.time(y, t)
    body = branch.body
    return Dynamics({"attention": lambda x, _, observer: body(x, None, observer)}, anchor=y), y
