"""results -> comparison.json, comparison.md, comparison.png, comparison.html: the same rows to read and to look at."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from odevit.analysis.significance import Proportion
from odevit.plotting import BLUE, GREEN, GREY, ORANGE, PINK, finish_figure, make_figure
from odevit.report.page import annotate
from odevit.report.section import Provenance, to_builtins, write_page

JSON, TABLE, PICTURE, PAGE = "comparison.json", "comparison.md", "comparison.png", "comparison.html"
HEAD = ("system", "parameters", "NFE", "ms / image", "memory", "top-1", "other solvers", "exponent", "training")
Row = Mapping[str, Any]


def make_row(system: str, results: Mapping[int, Row], **fields: Any) -> dict[str, Any]:
    """The row of a system: means over its seeds. Failed seeds give their reason and do not count."""
    done = [result for result in results.values() if not result["failure"]]
    failures = dict.fromkeys(result["failure"] for result in results.values() if result["failure"])
    seeds = [{"seed": seed, **_seed_fields(result)} for seed, result in results.items()]
    row = {"system": system, **fields, "failure": "; ".join(failures) or None, "seeds": seeds}
    if not done:
        return row
    measured, top1 = [result["measured"] for result in done], [result["top1"] for result in done]
    return {
        **row,
        "params": done[0]["params"],
        "top1": mean(top1),
        "top1_spread": stdev(top1) if len(top1) > 1 else None,
        "nfe": {"mean": mean(m["nfe"]["mean"] for m in measured), "max": max(m["nfe"]["max"] for m in measured)},
        "unsettled": mean(m.get("unsettled", 0.0) for m in measured),  # older measures have no count
        "memory": measured[0]["memory"],
        "ways": _mean_solvers([way for m in measured for way in m["ways"]]),
        "exponent": _mean_exponent([m["exponent"] for m in measured if m["exponent"]]),
        "seconds": mean(result["seconds"] for result in done),
    }


def _seed_fields(result: Row) -> dict[str, Any]:
    if result["failure"]:
        return {"failure": result["failure"]}
    fields = {key: result[key] for key in ("top1", "validation", "seconds", "epochs")}
    measured = {key: result["measured"][key] for key in ("nfe", "ways", "exponent", "batches")}
    return {**fields, **measured, "solver_failure": result["measured"]["failure"]}


def _mean_solvers(ways: Sequence[Row]) -> list[dict[str, Any]]:
    """The mean over seeds for every other solver and number of steps."""
    groups: dict[tuple[str, int], list[Row]] = {}
    for way in ways:
        groups.setdefault((way["solver"], way["steps"]), []).append(way)
    return [
        {"solver": solver, "steps": steps}
        | {key: mean(way[key] for way in group) for key in ("nfe", "top1", "changed", "finite")}
        for (solver, steps), group in groups.items()
    ]


def _mean_exponent(seeds: Sequence[Row]) -> dict[str, Any] | None:
    """The mean over seeds, from the lowest to the highest end of their intervals; None without a trajectory."""
    if not seeds:
        return None
    known = [seed for seed in seeds if seed["mean"] is not None]
    ends = [end for seed in known for end in seed["interval"] if end is not None]
    paths = [seed["path"]["mean"] for seed in seeds if seed["path"]["mean"] is not None]
    return {
        "mean": mean(seed["mean"] for seed in known) if known else None,
        "interval": [min(ends), max(ends)] if ends else None,
        "negative": mean(seed["negative"] for seed in seeds),
        "images": sum(seed["images"] for seed in seeds),
        "finite": sum(seed["finite"] for seed in seeds),
        "path": mean(paths) if paths else None,
    }


def ranked(rows: Iterable[Row]) -> list[Row]:
    """The most accurate first; those without a result last."""
    return sorted(rows, key=lambda row: -row.get("top1", -1.0))


def cells(row: Row) -> list[str]:
    """A row of the table as text, under `HEAD`; "-" where there is nothing to measure."""
    if "top1" not in row:
        reason = textwrap.shorten(row["failure"] or "not trained yet", 60, placeholder=" ...")
        return [row["system"], *["-"] * (len(HEAD) - 2), reason]
    nfe, ways, memory = row["nfe"], row["ways"], row["memory"]["bytes"]
    spread = "" if row["top1_spread"] is None else f" ± {100 * row['top1_spread']:.2f}"
    done = sum("top1" in seed for seed in row["seeds"])
    changed, lowest = max((w["changed"] for w in ways), default=0.0), min((w["top1"] for w in ways), default=0.0)
    return [
        row["system"],
        f"{row['params']:,}",
        f"{nfe['mean']:.4g}" + ("" if nfe["mean"] == nfe["max"] else f", at most {nfe['max']:.4g}"),
        f"{row['milliseconds']:.3f} ({row['relative']:.2f} x)" if "milliseconds" in row else "-",
        f"{memory / 2**20:.1f} MiB" if memory else "-",
        f"{100 * row['top1']:.2f}%{spread}" + (f" ({done} of {row['asked']} seeds)" if done < row["asked"] else ""),
        f"{100 * changed:.1f}% changed, {100 * lowest:.1f}%" if ways else "-",
        exponent_text(row["exponent"]),
        f"{row['seconds']:.0f} s",
    ]


def exponent_text(exponent: Row | None) -> str:
    """-0.52 [-0.60, -0.44]; where no image has a finite one, the growth up to the horizon; "-" without a path."""
    if exponent is None:
        return "-"
    if exponent["mean"] is None:
        path = exponent["path"]
        return "not finite" + ("" if path is None else f" ({path:.2f} up to the horizon)")
    ends, lost = exponent["interval"], exponent["images"] - exponent["finite"]
    between = f" [{ends[0]:.2f}, {ends[1]:.2f}]" if ends else ""
    return f"{exponent['mean']:.2f}{between}" + (f", {lost} of {exponent['images']} not finite" if lost else "")


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def write_numbers(folder: Path, comparison: Row) -> None:
    """comparison.json, replaced at once, so that an interruption leaves the last whole one; and comparison.md."""
    numbers = to_builtins(comparison)
    unfinished = folder / f"{JSON}.new"
    unfinished.write_text(json.dumps(numbers, indent=1) + "\n")
    os.replace(unfinished, folder / JSON)
    rows = ranked(numbers["rows"])
    parts = [
        f"# {Path(numbers['settings']['data']).name}: {len(rows)} systems, {numbers['parameters']:,} parameters",
        f"Seeds {', '.join(map(str, numbers['seeds']))}; {length_text(numbers)}; {numbers['device']}. The spread is "
        f"the standard deviation between seeds. {PAGE} explains the columns. {certainty(numbers)}".rstrip(),
        markdown(HEAD, [cells(row) for row in rows]),
        "\n".join(f"- {row['system']}: {changes_text(row)}" for row in rows if row.get("changed")),
        "\n".join(f"- {system}: {warning}" for system, warning in unsettled_systems(rows)),
        "\n".join(f"- {row['system']}: {row['failure']}" for row in rows if row["failure"]),
    ]
    (folder / TABLE).write_text("\n\n".join(filter(None, parts)) + "\n")


def write_pictures(folder: Path) -> Path:
    """comparison.png and comparison.html from comparison.json; returns the page."""
    comparison = json.loads((folder / JSON).read_text())
    everything = ranked(comparison["rows"])
    rows = [row for row in everything if "top1" in row]
    figures = {"rows": _png(draw_rows(rows, comparison["test_images"])), "cost": _png(draw_cost(rows))} if rows else {}
    if rows:
        (folder / PICTURE).write_bytes(figures["rows"])
    numbers = {
        **comparison,
        "rows": [{**row, "changed_words": changes_text(row)} for row in everything],
        "head": HEAD,
        "cells": [cells(row) for row in everything],
        "ways": [(row["system"], way) for row in rows for way in row["ways"]],
        "doubts": unsettled_systems(rows),
        "certainty": certainty(comparison),
        "length": length_text(comparison),
        "seed": ", ".join(map(str, comparison["seeds"])),
    }
    title = f"{len(rows)} systems on {Path(comparison['settings']['data']).name}"
    return write_page(folder / PAGE, title, "comparison.html.j2", [Provenance()], numbers, figures)


def unsettled_systems(rows: Iterable[Row]) -> list[tuple[str, str]]:
    """Systems whose trajectories did not all end by themselves, and for how many images."""
    text = "no rest point was found, or tokens were cut short, for {:.1%} of the images"
    return [(row["system"], text.format(row["unsettled"])) for row in rows if row.get("unsettled")]


def changes_text(row: Row) -> str:
    return " ".join(f"{key}={value:g}" for key, value in (row.get("changed") or {}).items()) or "nothing"


def length_text(comparison: Row) -> str:
    length = comparison["settings"]["length"]
    return ", ".join(f"{value:g} {key}" for key, value in length.items()) or "as long as the recipe says"


def certainty(comparison: Row) -> str:
    """How much of a difference the choice of test images makes, in a sentence; "" without a result."""
    images, best = comparison["test_images"], max((row.get("top1", -1.0) for row in comparison["rows"]), default=-1.0)
    if best < 0:
        return ""
    error = 100 * Proportion(round(best * images), images).error
    return f"Of {images:,} test images, {best:.1%} has a standard error of {error:.1f} points, however many the seeds."


def draw_rows(rows: Sequence[Row], images: int) -> Figure:
    """A line of dots for each system: accuracy by seed with its 95% interval, time, memory, changed answers."""
    values = {
        "time, relative": ([row.get("relative") for row in rows], ORANGE),
        "memory (MiB)": ([(row["memory"]["bytes"] or 0) / 2**20 or None for row in rows], GREEN),
        "changed answers (%)": ([max((100 * w["changed"] for w in row["ways"]), default=None) for row in rows], PINK),
    }
    values = {label: found for label, found in values.items() if any(value is not None for value in found[0])}
    figure, (accuracy, *others) = make_figure(1.3 + 0.26 * len(rows), 1 + len(values), sharey=True)
    heights = list(range(len(rows)))[::-1]
    for height, row in zip(heights, rows, strict=True):
        dots = [100 * seed["top1"] for seed in row["seeds"] if "top1" in seed]
        ends = [100 * end for end in Proportion(round(row["top1"] * images), images).interval]
        accuracy.plot(ends, [height, height], "-", color=GREY, alpha=0.5, linewidth=1.2)
        accuracy.plot(dots, [height] * len(dots), "o", color=BLUE, alpha=0.35, markersize=4)
        accuracy.plot(100 * row["top1"], height, "|", color=BLUE, markersize=11, markeredgewidth=2.2)
    for axes, (label, (found, colour)) in zip(others, values.items(), strict=True):
        dots = [(value, height) for value, height in zip(found, heights, strict=True) if value is not None]
        axes.plot(*zip(*dots, strict=True), "o", color=colour, markersize=5)
        if "%" in label:
            axes.set_xlim(-3, 103)
        else:
            _log_axis(axes)
        axes.set_xlabel(label)
    accuracy.set_xlabel("top-1 (%)")
    accuracy.set_yticks(heights, [row["system"] for row in rows])
    accuracy.set_ylim(-0.7, len(rows) - 0.3)
    for axes in (accuracy, *others):
        axes.grid(alpha=0.3)
        axes.tick_params(axis="y", length=0)
    return finish_figure(figure)


def draw_cost(rows: Sequence[Row]) -> Figure:
    """top-1 against time where all were timed, else against evaluations, which cost more in a wider field."""
    timed = all(row.get("relative") is not None for row in rows)
    figure, (axes,) = make_figure(4.2)
    names = []
    for row in rows:
        spot = row["relative"] if timed else row["nfe"]["mean"], 100 * row["top1"]
        axes.errorbar(*spot, yerr=100 * (row["top1_spread"] or 0.0), fmt="o", color=BLUE, ecolor=GREY, markersize=5)
        names.append(annotate(axes, row["system"], spot, (5, 3), fontsize=7.5, color=GREY))
    axes.set(xlabel="time, relative" if timed else "evaluations of the field for an image", ylabel="top-1 (%)")
    axes.grid(alpha=0.3)
    _log_axis(axes)
    finish_figure(figure).draw_without_rendering()  # places the names; those that would cover an earlier one are hidden
    boxes: list[Any] = []
    for name in names:
        box = name.get_window_extent()
        name.set_visible(not any(box.overlaps(other) for other in boxes))
        boxes += [box] * name.get_visible()
    return figure


def _log_axis(axes: Any) -> None:
    """A logarithmic axis with ticks at 1, 2, 5, 10."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def _png(figure: Figure) -> bytes:
    figure.savefig(buffer := BytesIO(), format="png")
    return buffer.getvalue()
