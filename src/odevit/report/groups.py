"""lambda by class and by token: does growth along the path depend on the class, or on the tokens it begins in?"""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from torch import Tensor

from odevit.analysis.lyapunov import by_class
from odevit.analysis.settling import LargestExponents, path_exponents
from odevit.analysis.significance import Proportion, correlation
from odevit.plotting import finish_figure, format_signed, make_figure
from odevit.report.page import annotate
from odevit.report.section import SECTIONS, Figures, Numbers, Section
from odevit.report.study import Study

NAMED = 20
"""With more classes than this, only the extreme ones have labels."""


@SECTIONS.register("groups")
class Groups(Section):
    """Exponents along the path by class and by kind of token."""

    title = "Which images, which tokens?"
    order = 20
    text = """
{% call table("disturbance begins in", "images", "mean λ along the path", "negative", "not converged") %}
{% for name, group in exponents.by_token.items() %}
{{ row(name, group.images, (group.mean | number) ~ " ± " ~ (group.error | number), group.negative.value | percent,
       (1 - group.converged.value) | percent) }}
{% endfor %}
{% endcall %}
{% set related, at_rest = exponents.by_class.correlation, exponents.by_class_at_rest.correlation %}
{% call picture("classes") %}
Mean exponent along the path and accuracy of each class (the paper's Fig. 5); {{ data.images | count }} images, the area
of a bubble is their number.
{% if related %}
p is the share of random shuffles of the {{ related.count }} classes with a correlation at least as strong.
{% if at_rest %}
With the exponent at rest r = {{ at_rest.r | number(".2f") }}, p = {{ at_rest.p | number(".2g") }}.
{% endif %}
{% else %}
No correlation is given: it needs three classes that differ.
{% endif %}
{% endcall %}
"""

    def measure(self, study: Study) -> dict[str, Any]:
        path, rest = study.exponents
        return {
            "answers": study.answers,
            "exponents": {
                "by_class": class_numbers(path, study.answers),
                "by_class_at_rest": class_numbers(rest, study.answers),
                "by_token": token_numbers(study),
            },
        }

    def draw(self, numbers: Numbers, pictures: Tensor) -> Figures:
        classes = numbers["exponents"]["by_class"]
        return {"classes": draw_classes(classes)} if classes["classes"] else {}


def class_numbers(maximal: LargestExponents, answers: dict[str, Any]) -> dict[str, Any]:
    """The mean exponent of each class, its accuracy, and their correlation (the paper's Fig. 5)."""
    finite = maximal.values.isfinite()
    rows = [
        {
            "class": answers["classes"][label]["name"],
            "exponent": mean.mean,
            "error": mean.error,
            "count": mean.count,
            "accuracy": answers["classes"][label]["value"],
            "accuracy_error": answers["classes"][label]["error"],
        }
        for label, mean in by_class(maximal.values[finite], answers["labels"][finite]).items()
    ]
    related = correlation([row["exponent"] for row in rows], [row["accuracy"] for row in rows])
    return {"classes": rows, "correlation": related}


def token_numbers(study: Study) -> dict[str, Any]:
    """lambda_1 along the path of a perturbation that begins in CLS, in the patches or in the registers only."""
    layout, field = study.model.layout(), study.model.field
    numbers = {}
    for name, tokens in (("CLS", layout.cls), ("patches", layout.patches), ("registers", layout.registers)):
        if tokens.start == tokens.stop:
            continue
        starts = (chunk["x0"] for chunk in study.sample.first(study.sizes.groups))
        path = path_exponents(field, study.solver_config, starts, tokens, seed=study.seed)
        numbers[name] = {
            "images": len(path.values),
            "mean": path.mean,
            "error": path.mean_error,
            "negative": path.negative,
            "converged": Proportion.of(path.converged),
        }
    return numbers


def draw_classes(by_class: Numbers) -> Figure:
    """Mean exponent against accuracy, a bubble per class (the paper's Fig. 5)."""
    figure, (axes,) = make_figure(4.4)
    rows = [row for row in by_class["classes"] if row["exponent"] is not None]
    largest, many = max(row["count"] for row in rows), len(rows) > NAMED
    accuracies, exponents = [100 * row["accuracy"] for row in rows], [row["exponent"] for row in rows]
    if not many:
        errors = [row["error"] or 0.0 for row in rows], [100 * row["accuracy_error"] for row in rows]
        axes.errorbar(accuracies, exponents, *errors, linestyle="", color="0.7", linewidth=1, zorder=1)
    sizes = [(60 if many else 160) * row["count"] / largest for row in rows]
    rim = {"edgecolor": "black", "linewidth": 0.5}
    bubbles = axes.scatter(accuracies, exponents, sizes, c=accuracies, cmap="cividis", **rim, zorder=2)
    figure.colorbar(bubbles, ax=axes, label="accuracy of the class (%)")
    axes.margins(0.12)
    _label(axes, [(row["class"], 100 * row["accuracy"], row["exponent"]) for row in _named(rows, many)])
    axes.set(xlabel="accuracy of the class (%)", ylabel="mean exponent along the path (1 / unit of time)")
    axes.grid(alpha=0.3)
    related = by_class["correlation"]
    result = (
        f"r = {format_signed(related['r'])}, p = {related['p']:.2g}"
        if related
        else "a correlation takes three that differ"
    )
    return finish_figure(figure, f"Exponent and accuracy of {len(rows)} classes: {result}")


def _named(rows: list[Numbers], many: bool) -> list[Numbers]:
    """All classes; of many, the three at each end of either axis."""
    if not many:
        return rows
    ends: dict[str, Numbers] = {}
    for key in ("accuracy", "exponent"):
        ordered = sorted(rows, key=lambda row: row[key])
        ends |= {row["class"]: row for row in [*ordered[:3], *ordered[-3:]]}
    return list(ends.values())


def _label(axes: Any, points: list[tuple[str, float, float]]) -> None:
    """Names beside points, each in the first of eight places that no point and no earlier name has taken."""
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    width, height = 410.0, 250.0  # of the axes, in points, roughly
    spots = [
        (name, x, y, width * (x - left) / (right - left), height * (y - bottom) / (top - bottom))
        for name, x, y in sorted(points, key=lambda point: -point[2])
    ]
    taken = [(across - 6, across + 6, up - 3) for _, _, _, across, up in spots]
    places = [(8.0 * side, shift) for shift in (4.0, -11.0, 16.0, -23.0) for side in (1, -1)]

    def free(begin: float, end: float, level: float) -> bool:
        return begin > 0 and all(abs(level - v) > 10 or begin > b or end < a for a, b, v in taken)

    for name, x, y, across, up in spots:
        length = 5.0 * len(name)
        extents = {}
        for dx, dy in places:
            begin = across + dx - (length if dx < 0 else 0.0)
            extents[dx, dy] = (begin, begin + length, up + dy)
        place = next((place for place, extent in extents.items() if free(*extent)), places[0])
        taken.append(extents[place])
        annotate(axes, name, (x, y), place, fontsize=9, zorder=3, ha="left" if place[0] > 0 else "right")
