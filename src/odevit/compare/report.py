"""comparison.json -> comparison.md, comparison.png, comparison.html: the same rows to read and to look at."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.ticker import LogLocator, NullFormatter

from odevit.analysis.significance import Proportion
from odevit.compare.aggregate import HEAD, cells, doubts, markdown, ranked
from odevit.plotting import BLUE, GREEN, GREY, ORANGE, PINK, finish_figure, make_figure
from odevit.report.page import annotate
from odevit.report.section import Provenance, Section, to_builtins, write_page

JSON, TABLE, PICTURE, PAGE = "comparison.json", "comparison.md", "comparison.png", "comparison.html"


class Found(Section):
    """What the rows say, in a few sentences and a scatter."""

    title = "Accuracy against cost"
    text = """
{% call picture("cost") %}Each system's accuracy against what an image costs, means over seeds; the bar is the spread
between seeds. A name that would lie over a better one's is left out: the table has all.{% endcall %}
"""


class Ways(Section):
    """Every other way, for those that have any."""

    title = "The same weights in other ways"
    text = """
{% if ways %}
{% call table("system", "way", "NFE", "top-1", "changed answers") %}
{% for system, it in ways %}
{{ row(system, it.solver ~ ", " ~ it.steps ~ " steps" if it.solver != "dopri5" else "dopri5, to a tolerance",
       it.nfe | number, it.top1 | percent, it.changed | percent) }}
{% endfor %}
{% endcall %}
{% call small() %}Changed: the share of {{ settings.images | count }} test images, or fewer, with another answer than in
the system's own way.{% endcall %}
{% endif %}
"""


class Equal(Section):
    """What was the same, and what had to be changed for that."""

    title = "What was the same"
    text = """
<p>Data ({{ settings.data }}), the first weights' seeds ({{ seeds | join(", ") }}), the order of the images and their
augmentation, optimiser, learning rate and length ({{ length }}). {% if same_batches %}The first batches of every seed
have the same hash in all systems.{% else %}<strong>The first batches differ between systems.</strong>{% endif %}
The budget is {{ parameters | count }} parameters; width and MLP were changed to meet it.</p>
{% call table("system", "parameters", "of the budget", "changed for it") %}
{% for it in rows if it.params is defined %}
{{ row(it.system, it.params | count, (it.params / parameters) | percent, it.changed_words) }}
{% endfor %}
{% endcall %}
"""


class Each(Section):
    """What every system is."""

    title = "Who took part"
    text = """
<dl>{% for it in rows %}<dt>{{ it.system }}</dt><dd>{{ it.about }}</dd>{% endfor %}</dl>
"""


def write_numbers(folder: Path, comparison: Mapping[str, Any]) -> None:
    """comparison.json, in one piece, so that whoever stops us finds the last whole one; and the same as a table."""
    numbers = to_builtins(comparison)
    fresh = folder / f"{JSON}.new"
    fresh.write_text(json.dumps(numbers, indent=1) + "\n")
    os.replace(fresh, folder / JSON)
    (folder / TABLE).write_text(table_of(numbers))


def write_pictures(folder: Path) -> Path:
    """comparison.png and comparison.html from comparison.json; the page is given back."""
    comparison = json.loads((folder / JSON).read_text())
    rows = [row for row in ranked(comparison["rows"]) if "top1" in row]
    images = comparison["test_images"]
    figures = {"rows": png(draw_rows(rows, images)), "cost": png(draw_cost(rows))} if rows else {}
    if rows:
        (folder / PICTURE).write_bytes(figures["rows"])
    numbers = {
        **comparison,
        "rows": [{**row, "changed_words": changed_words(row)} for row in ranked(comparison["rows"])],
        "head": HEAD,
        "cells": [cells(row) for row in ranked(comparison["rows"])],
        "ways": [(row["system"], solver_config) for row in rows for solver_config in row["ways"]],
        "doubts": doubts(rows),
        "certainty": certainty(rows[0]["top1"], images) if rows else "",
        "length": length_in_words(comparison["settings"]["length"]),
        "seed": ", ".join(map(str, comparison["seeds"])),
    }
    title = f"{len(rows)} systems on {Path(comparison['settings']['data']).name}"
    sections = [Found(), Ways(), Equal(), Each(), Provenance()]
    return write_page(folder / PAGE, title, "comparison.html.j2", sections, numbers, figures)


def table_of(comparison: Mapping[str, Any]) -> str:
    """comparison.md."""
    settings, rows = comparison["settings"], ranked(comparison["rows"])
    missed = [f"- {row['system']}: {row['failure']}" for row in rows if row["failure"]]
    changed = [f"- {row['system']}: {changed_words(row)}" for row in rows if row.get("changed")]
    parts = [
        f"# {Path(settings['data']).name}: {len(rows)} systems, {comparison['parameters']:,} parameters",
        f"Seeds {', '.join(map(str, comparison['seeds']))}; {length_in_words(settings['length'])}; "
        f"{comparison['device']}. The spread is the standard deviation between seeds."
        + "".join(f" {certainty(row['top1'], comparison['test_images'])}" for row in rows[:1] if "top1" in row),
        markdown(HEAD, [cells(row) for row in rows]),
        "Memory: the peak of a training step in its own way. In other ways: the most answers that change and the "
        "lowest top-1 among half and twice the steps, Euler, Heun, RK4 and dopri5, on the first "
        f"{settings['images']} test images. Exponent: the largest Lyapunov exponent after eight horizons, its mean "
        "over images and seeds, from the lowest to the highest end of their 95% intervals.",
    ]
    if changed:
        parts.append("Changed to meet the budget:\n\n" + "\n".join(changed))
    if unsettled := [f"- {system}: {said}" for system, said in doubts(rows)]:
        parts.append("No rest point was found, or tokens were cut short:\n\n" + "\n".join(unsettled))
    if missed:
        parts.append("Not trained, or not with every seed:\n\n" + "\n".join(missed))
    return "\n\n".join(parts) + "\n"


def changed_words(row: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value:g}" for key, value in (row.get("changed") or {}).items()) or "nothing"


def length_in_words(length: Mapping[str, float]) -> str:
    return ", ".join(f"{value:g} {key}" for key, value in length.items()) or "as long as the recipe says"


def sampled(top1: float, images: int) -> Proportion:
    """An accuracy as what it is, a share of so many test images."""
    return Proportion(round(top1 * images), images)


def certainty(top1: float, images: int) -> str:
    """How much of a difference the choice of test images makes, in a sentence."""
    error = 100 * sampled(top1, images).error
    return f"Of {images:,} test images, {top1:.1%} has a standard error of {error:.1f} points, however many the seeds."


def draw_rows(rows: Sequence[Mapping[str, Any]], images: int) -> Figure:
    """A line of dots for each system: accuracy by seed with its 95% interval, time if any, memory, changed answers."""
    timed = any(row.get("relative") is not None for row in rows)
    labels = ["top-1 (%)", *["time, relative"] * timed, "memory (MiB)", "changed answers (%)"]
    figure, panels = make_figure(1.3 + 0.26 * len(rows), len(labels), sharey=True)
    heights = list(range(len(rows)))[::-1]
    accuracy, *between, memory, changed = panels
    for height, row in zip(heights, rows, strict=True):
        dots = [100 * seed["top1"] for seed in row["seeds"] if "top1" in seed]
        ends = [100 * end for end in sampled(row["top1"], images).interval]
        accuracy.plot(ends, [height, height], "-", color=GREY, alpha=0.5, linewidth=1.2)
        accuracy.plot(dots, [height] * len(dots), "o", color=BLUE, alpha=0.35, markersize=4)
        accuracy.plot(100 * row["top1"], height, "|", color=BLUE, markersize=11, markeredgewidth=2.2)
        if row.get("relative") is not None:
            between[0].plot(row["relative"], height, "o", color=ORANGE, markersize=5)
        memory.plot(row["memory"]["bytes"] / 2**20, height, "o", color=GREEN, markersize=5)
        if row["ways"]:
            changed.plot(
                100 * max(solver_config["changed"] for solver_config in row["ways"]),
                height,
                "o",
                color=PINK,
                markersize=5,
            )
        else:
            annotate(changed, "no other way", (0, height), (3, 0), va="center", fontsize=7, color=GREY)
    accuracy.set_yticks(heights, [row["system"] for row in rows])
    for axes, label in zip(panels, labels, strict=True):
        axes.set_xlabel(label)
        axes.grid(alpha=0.3)
        axes.tick_params(axis="y", length=0)
    for axes in (*between, memory):
        in_decades(axes)
    changed.set_xlim(-3, 103)
    accuracy.set_ylim(-0.7, len(rows) - 0.3)
    return finish_figure(figure)


def draw_cost(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """top-1 against time where all were timed, else against evaluations, which are dearer in a wider field."""
    timed = all(row.get("relative") is not None for row in rows)
    figure, (axes,) = make_figure(4.2)
    names = []
    for row in rows:
        spot = row["relative"] if timed else row["nfe"]["mean"], 100 * row["top1"]
        axes.errorbar(*spot, yerr=100 * (row["top1_spread"] or 0.0), fmt="o", color=BLUE, ecolor=GREY, markersize=5)
        names.append(annotate(axes, row["system"], spot, (5, 3), fontsize=7.5, color=GREY))
    axes.set(xlabel="time, relative" if timed else "evaluations of the field for an image", ylabel="top-1 (%)")
    axes.grid(alpha=0.3)
    in_decades(axes)
    hide_covered(finish_figure(figure), names)
    return figure


def hide_covered(figure: Figure, names: Sequence[Annotation]) -> None:
    """Leave out every name that would lie over one before it."""
    figure.draw_without_rendering()  # only now is it known where they come to lie
    shown: list[Any] = []
    for name in names:
        box = name.get_window_extent()
        name.set_visible(not any(box.overlaps(other) for other in shown))
        if name.get_visible():
            shown.append(box)


def in_decades(axes: Any) -> None:
    """A logarithmic axis that reads 1, 2, 5, 10."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def png(figure: Figure) -> bytes:
    figure.savefig(buffer := BytesIO(), format="png")
    return buffer.getvalue()
