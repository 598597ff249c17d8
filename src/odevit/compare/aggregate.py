"""results of entries -> one row per system: means over seeds with their spread, and where they stand."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

HEAD = ("system", "parameters", "NFE", "ms / image", "memory", "top-1", "in other ways", "exponent", "training")


def row_of(system: str, results: Mapping[int, Mapping[str, Any]], **facts: Any) -> dict[str, Any]:
    """The row of a system from its results by seed; a seed that failed says why, and the others count."""
    failures = {seed: result["failure"] for seed, result in results.items() if result["failure"]}
    done = {seed: result for seed, result in results.items() if not result["failure"]}
    row = {"system": system, **facts, "failure": "; ".join(dict.fromkeys(failures.values())) or None}
    row["seeds"] = [
        {"seed": seed, **({"failure": failures[seed]} if seed in failures else seed_numbers(result))}
        for seed, result in results.items()
    ]
    if not done:
        return row
    measured = [result["measured"] for result in done.values()]
    top1 = [result["top1"] for result in done.values()]
    return {
        **row,
        "params": next(iter(done.values()))["params"],
        "top1": statistics.mean(top1),
        "top1_spread": statistics.stdev(top1) if len(top1) > 1 else None,
        "nfe": {
            "mean": statistics.mean(found["nfe"]["mean"] for found in measured),
            "max": max(found["nfe"]["max"] for found in measured),
        },
        # Runs that were measured before they were counted have no count.
        "unsettled": statistics.mean(found.get("unsettled", 0.0) for found in measured),
        "memory": measured[0]["memory"],
        "ways": mean_ways([found["ways"] for found in measured]),
        "exponent": mean_exponent([found["exponent"] for found in measured if found["exponent"]]),
        "seconds": statistics.mean(result["seconds"] for result in done.values()),
    }


def seed_numbers(result: Mapping[str, Any]) -> dict[str, Any]:
    """What a row keeps of one seed."""
    measured = result["measured"]
    return {
        **{key: result[key] for key in ("top1", "validation", "seconds", "epochs")},
        **{key: measured[key] for key in ("nfe", "ways", "exponent", "batches")},
        "solver_failure": measured["failure"],
    }


def mean_ways(seeds: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Each other way, with its means over the seeds that have it."""
    groups: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for solver_config in (solver_config for ways in seeds for solver_config in ways):
        groups.setdefault((solver_config["solver"], solver_config["steps"]), []).append(solver_config)
    keys = ("nfe", "top1", "changed", "finite")
    return [
        {
            "solver": solver,
            "steps": steps,
            **{key: statistics.mean(solver_config[key] for solver_config in ways) for key in keys},
        }
        for (solver, steps), ways in groups.items()
    ]


def mean_exponent(seeds: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The mean over seeds, from the lowest to the highest end of their intervals; None without a trajectory."""
    if not seeds:
        return None
    known = [found for found in seeds if found["mean"] is not None]
    ends = [end for found in known for end in found["interval"] if end is not None]
    paths = [found["path"]["mean"] for found in seeds if found["path"]["mean"] is not None]
    return {
        "mean": statistics.mean(found["mean"] for found in known) if known else None,
        "interval": [min(ends), max(ends)] if ends else None,
        "negative": statistics.mean(found["negative"] for found in seeds),
        "images": sum(found["images"] for found in seeds),
        "finite": sum(found["finite"] for found in seeds),
        "path": statistics.mean(paths) if paths else None,
    }


def ranked(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The best first; those without a result last."""
    return sorted(rows, key=lambda row: -row.get("top1", -1.0))


def cells(row: Mapping[str, Any]) -> list[str]:
    """A row of the table in words, under `HEAD`; "-" where there is nothing to measure."""
    if "top1" not in row:
        why = textwrap.shorten(row["failure"] or "not trained yet", 60, placeholder=" ...")
        return [row["system"], *["-"] * (len(HEAD) - 2), why]
    ways, time, nfe = row["ways"], row.get("milliseconds"), row["nfe"]
    spread = "" if row["top1_spread"] is None else f" ± {100 * row['top1_spread']:.2f}"
    done = sum("top1" in seed for seed in row["seeds"])
    unfinished = f" ({done} of {row['asked']} seeds)" if done < row["asked"] else ""
    changed, least = (
        max((solver_config["changed"] for solver_config in ways), default=0.0),
        min((solver_config["top1"] for solver_config in ways), default=0.0),
    )
    return [
        row["system"],
        f"{row['params']:,}",
        f"{nfe['mean']:.4g}" + ("" if nfe["mean"] == nfe["max"] else f", at most {nfe['max']:.4g}"),
        "-" if time is None else f"{time:.3f} ({row['relative']:.2f} x)",
        f"{row['memory']['bytes'] / 2**20:.1f} MiB",
        f"{100 * row['top1']:.2f}%{spread}{unfinished}",
        f"{100 * changed:.1f}% changed, {100 * least:.1f}%" if ways else "-",
        exponent_in_words(row["exponent"]),
        f"{row['seconds']:.0f} s",
    ]


def doubts(rows: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Systems some of whose answers are not what they should be, and how many."""
    return [
        (row["system"], f"{row['unsettled']:.1%} of the images did not come to their end by themselves")
        for row in rows
        if row.get("unsettled")
    ]


def exponent_in_words(exponent: Mapping[str, Any] | None) -> str:
    """-0.52 [-0.60, -0.44]; where no image has a finite one, the growth up to the horizon; "-" without a path."""
    if exponent is None:
        return "-"
    if exponent["mean"] is None:
        path = exponent["path"]
        return "not finite" + ("" if path is None else f" ({path:.2f} up to the horizon)")
    ends = exponent["interval"]
    between = f" [{ends[0]:.2f}, {ends[1]:.2f}]" if ends else ""
    lost = exponent["images"] - exponent["finite"]
    return f"{exponent['mean']:.2f}{between}" + (f", {lost} of {exponent['images']} not finite" if lost else "")


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))
