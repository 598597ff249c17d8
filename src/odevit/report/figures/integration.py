"""Accuracy against steps, solvers and horizons, and the speed that is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from odevit.report.figures.style import BLUE, COLOURS, GREY, MARKERS, ORANGE, finish, make_figure, numbers_of, signed

Outcomes = Sequence[Mapping[str, Any]]


def draw_steps(sweep: Mapping[str, Any]) -> Figure:
    """Accuracy against evaluations, a line a solver; beyond its stability limit hollow (the paper's Fig. 8)."""
    figure, (axes,) = make_figure(4.4)
    own, accurate = sweep["own"], sweep["accurate"]
    lines: dict[str, list[Mapping[str, Any]]] = {f"{own['solver']}, its own": list(sweep["steps"])}
    for each in sweep["solvers"]:
        if each["solver"] != own["solver"]:
            lines.setdefault(each["solver"], []).append(each)
    # Other solvers see fewer images; a difference on the same images can be compared, an accuracy on others cannot.
    base = {each["images"]: each["top1"] for each in (own, *sweep["solvers"]) if _way(each) == _way(own)}
    base[accurate["images"]] = accurate["top1"] - accurate["difference"]

    def gain(each: Mapping[str, Any]) -> float:
        return 100 * (each["top1"] - base[each["images"]])

    # Ways that diverge would squeeze all the others into one line; they stand at the lower edge with their number.
    counted = [*sweep["steps"], *(each for each in sweep["solvers"] if each["stable"] is not False), accurate]
    floor = min(gain(each) for each in counted) - 3
    for number, (name, outcomes) in enumerate(lines.items()):
        style = {
            "color": COLOURS[number % len(COLOURS)],
            "marker": MARKERS[number % len(MARKERS)],
            "linestyle": "-" if number < len(COLOURS) else "--",
        }
        ordered = sorted(outcomes, key=lambda each: each["nfe"])
        axes.plot(
            [each["nfe"] for each in ordered], [gain(each) for each in ordered], **style,
            linewidth=1.3 if number else 2.2, markersize=5, label=_words(name),
        )  # fmt: skip
        for each in ordered:
            if each["stable"] is False:
                spot = (each["nfe"], max(gain(each), floor + 0.04 * (3 - floor)))
                axes.plot(*spot, **{**style, "linestyle": ""}, markersize=8, markerfacecolor="white", zorder=4)
                if gain(each) < floor:
                    axes.annotate(signed(gain(each), 0), spot, xytext=(7, -3), textcoords="offset points", fontsize=9)
    axes.errorbar(
        [accurate["nfe"]], [gain(accurate)], [100 * accurate["error"]], color="black", marker="*",
        markersize=10, capsize=3, linestyle="", label=f"{accurate['solver']}, to a tolerance",
    )  # fmt: skip
    axes.axhline(0.0, color=GREY, linewidth=1, linestyle="--", zorder=1)
    axes.set_xscale("log", base=2)
    ticks = _spaced(sorted({round(each["nfe"]) for each in [*sweep["steps"], *sweep["solvers"], accurate]}))
    axes.set_xticks(ticks, labels=[str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set(
        xlabel="evaluations of the field (log axis)",
        ylabel="accuracy less that of its own way (points)",
    )
    axes.set_ylim(bottom=floor)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5))
    spread = sweep["spreads"]["steps"]
    said = ""
    if spread is not None:
        fewest, most = spread["steps"]
        said = f"; {100 * spread['difference']:.1f} points over {fewest} to {most} steps"
    return finish(figure, f"Other steps and solvers against its own {100 * own['top1']:.1f}%{said}")


def draw_grid(grid: Outcomes, own: Mapping[str, Any]) -> Figure:
    """Accuracy for every horizon and number of steps; a star where the step is too long (the paper's Fig. 7)."""
    from matplotlib.patches import Rectangle

    figure, (axes,) = make_figure(4.0)
    horizons = sorted({each["horizon"] for each in grid})
    counts = sorted({each["steps"] for each in grid})
    values = [[float("nan")] * len(counts) for _ in horizons]
    for each in grid:
        values[horizons.index(each["horizon"])][counts.index(each["steps"])] = 100 * each["top1"]
    flat = [value for row in values for value in row]
    image = axes.imshow(values, origin="lower", aspect="auto", cmap="cividis", vmin=min(flat), vmax=max(flat))
    middle = (min(flat) + max(flat)) / 2
    for each in grid:
        row, column = horizons.index(each["horizon"]), counts.index(each["steps"])
        value = 100 * each["top1"]
        text = f"{value:.1f}" + ("" if each["stable"] is not False else "*")
        colour = "white" if value < middle else "black"
        axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=11)
        if each["horizon"] == own["horizon"] and each["steps"] == own["steps"]:
            axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="#D55E00", linewidth=3))
    axes.set_xticks(range(len(counts)), labels=[str(count) for count in counts])
    axes.set_yticks(
        range(len(horizons)), labels=[f"{horizon:g}  ({horizon / own['horizon']:g}x)" for horizon in horizons]
    )
    axes.set(xlabel="steps", ylabel="horizon T (unit of time)")
    figure.colorbar(image, ax=axes, label="top-1 accuracy (%)")
    stable = [100 * each["top1"] for each in grid if each["stable"] is not False]
    said = f"{min(stable):.1f} to {max(stable):.1f}% where the step is stable" if stable else "no stable step"
    return finish(figure, f"Accuracy by horizon and steps: {said} (* beyond its limit)")


def draw_horizons(sweep: Mapping[str, Any]) -> Figure:
    """Accuracy and agreement against the time at which the model's own path is read."""
    figure, (axes,) = make_figure(3.6)
    own = sweep["own"]
    read = sorted({each["horizon"]: each for each in [*sweep["stops"], *sweep["horizons"]]}.items())
    times = [time for time, _ in read]
    for key, name, colour, marker in (
        ("top1", "accuracy", BLUE, "o"),
        ("agreement", "same answer as at its own horizon", ORANGE, "s"),
    ):
        shares = [100 * each[key] for _, each in read]
        axes.plot(times, shares, color=colour, marker=marker, markersize=4, linewidth=1.8, label=name)
    axes.axvline(own["horizon"], color=GREY, linestyle="--", linewidth=1)
    axes.annotate(
        "its horizon", (own["horizon"], 0.03), xytext=(-5, 0), textcoords="offset points",
        xycoords=("data", "axes fraction"), color=GREY, ha="right",
    )  # fmt: skip
    axes.set_xscale("log", base=2)
    labels = [own["horizon"] * share for share in (0.25, 0.5, 1, 2, 4, 8)]
    axes.set_xticks(labels, labels=[f"{label:g}" for label in labels])
    axes.minorticks_off()
    axes.set(xlabel="time at which the path is read (log axis)", ylabel="images (%)")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    spread = sweep["spreads"]["horizons"]
    said = "" if spread is None else f" varies by {100 * spread['difference']:.1f} points from 1x to 8x its horizon"
    return finish(figure, f"Accuracy along the model's own path{said}")


def draw_speed(speed: Mapping[str, Any]) -> Figure:
    """Relative speed against time: the median image and the middle 90% of them."""
    figure, (axes,) = make_figure(3.4)
    times = speed["times"]
    low, middle, high = (numbers_of(speed[key]) for key in ("low", "median", "high"))
    axes.fill_between(times, low, high, color=BLUE, alpha=0.2, linewidth=0, label="middle 90% of the images")
    axes.plot(times, middle, color=BLUE, linewidth=2, label="median image")
    axes.axvline(speed["horizon"], color=GREY, linestyle="--", linewidth=1)
    axes.annotate(
        "its horizon", (speed["horizon"], 0.97), xytext=(5, -9), textcoords="offset points",
        xycoords=("data", "axes fraction"), color=GREY,
    )  # fmt: skip
    if any(value > 0 for value in middle):
        axes.set_yscale("log")
    axes.set(xlabel="time t", ylabel="|dx/dt| / |x|  (1 / unit of time)", xlim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, loc="upper right", bbox_to_anchor=(1.0, 0.92))
    first, last = middle[0], middle[-1]
    return finish(figure, f"Speed of the state: {first:.2g} at the start, {last:.1g} at t = {times[-1]:.3g}")


def _way(outcome: Mapping[str, Any]) -> tuple[str, int, float]:
    return outcome["solver"], outcome["steps"], outcome["horizon"]


def _words(name: str) -> str:
    return name.replace("_", " ")


def _spaced(ticks: list[int]) -> list[int]:
    """Those that are far enough apart on a logarithmic axis to be read."""
    kept: list[int] = []
    for tick in ticks:
        if not kept or tick >= 1.3 * kept[-1]:
            kept.append(tick)
    return kept
