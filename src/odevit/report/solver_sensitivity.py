"""top-1(solver, N, T): do the answers depend on the solver, its steps and the horizon? How many are enough?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from odevit.analysis.significance import SIGMAS, Proportion, paired_error
from odevit.analysis.sweep import (
    Outcome,
    accurate_config,
    grid_configs,
    horizon_configs,
    solver_configs,
    step_configs,
    sweep,
)
from odevit.core.base import SOLVERS, FixedStepSolver
from odevit.core.solver_config import SolverConfig
from odevit.plotting import BLUE, COLOURS, GREY, MARKERS, ORANGE, finish_figure, format_signed, make_figure
from odevit.report.page import annotate, mark_horizon, number, percent, share_of, span, words
from odevit.report.section import SECTIONS, TOO_FEW, Figures, Numbers, Section, Verdict
from odevit.report.study import Study, path_configs

FEWEST, MOST = 6, 64
"""The range of steps of the model's own solver in which its answers are compared."""
SAME_ACCURACY, OTHER_ACCURACY = 0.01, 0.03
SAME_ANSWERS, OTHER_ANSWERS = 0.95, 0.85
"""Limits of the change of accuracy, and of the share of unchanged answers, for `no` and for `yes`."""
ENOUGH = 0.005
"""Evaluations are enough when they, and every larger number tried, lose at most this much accuracy."""


@SECTIONS.register("solver_sensitivity")
class SolverSensitivity(Section):
    """Steps, solvers and horizons."""

    title = "Does the answer depend on how it was integrated?"
    order = 40
    thresholds = (
        "The answer does not depend on the integration: within every group of settings accuracy varies by at most "
        f"{100 * SAME_ACCURACY:.0f} point or {SIGMAS:.0f} standard errors, and at least {SAME_ANSWERS:.0%} of the "
        f"answers stay. It does: in some group accuracy varies by more than {100 * OTHER_ACCURACY:.0f} points and "
        f"{SIGMAS:.0f} standard errors, or fewer than {OTHER_ANSWERS:.0%} of the answers stay. In between it does "
        f"slightly. Where more than {100 * OTHER_ACCURACY:.0f} points are within the standard errors, there are too "
        "few images to say.",
        f"Evaluations are enough when they and every larger number tried lose at most {100 * ENOUGH:.1f} points.",
    )

    text = """
{% set few, accurate = sweep.solvers[0].images, sweep.accurate %}
{% call picture("steps") %}Accuracy against cost (the paper's Fig. 8), as the difference from the model's own settings
on the same images: {{ sweep.own.images | count }} for its own solver, {{ accurate.images | count }} for
{{ accurate.solver | words }} (with the standard error), {{ few | count }} for the others. Hollow: the step is beyond
the stability limit of the solver. Such settings are shown and not counted.{% endcall %}
{% call small() %}
{% if limits.radius is none %}
No stability limits: the states are not finite numbers.
{% else %}
Stability limits. {% if limits.on_the_way | default(false) -%}
Along the paths of {{ limits.images }} images, since the equation changes with time,
{%- else -%}At the rest points of {{ limits.images }} images,{%- endif %} the largest eigenvalue of df/dx has the size
{{ limits.radius | number(".2f") }}, and {{ limits.forcing | number(".2f") }} without the leak. An explicit Runge-Kutta
step h is stable while h times the first is below 2 (Euler, midpoint, Heun) or 2.79 (RK4). Splittings and exponential
methods solve the leak exactly; they are stable while h times the second is below 2. That is exact for real eigenvalues
and a rule of thumb otherwise. Longest stable steps:
{% for name, step in limits.longest.items() if step is not none -%}
{{ name | words }} {{ step | number(".2f") }}{{ ". " if loop.last else ", " }}
{%- endfor %}
The model's own step is {{ (model.horizon / model.steps) | number(".2f") }}.
{% endif %}
{% endcall %}
{% call picture("horizons") %}The model's own steps to shorter and longer horizons; {{ sweep.own.images | count }}
images.{% endcall %}
{% call picture("grid") %}Every horizon with every number of steps of its own solver (the paper's Fig. 7);
{{ few | count }} images. Framed: the model's own settings.{% endcall %}
"""

    def measure(self, study: Study) -> dict[str, Any]:
        longest = {name: study.limits.max_step(name) for name in sorted(SOLVERS)}
        return {"limits": {**vars(study.limits), "longest": longest}, "sweep": sweep_numbers(study)}

    def draw(self, numbers: Numbers, pictures: Tensor) -> Figures:
        sweep = numbers["sweep"]
        return {
            "steps": draw_steps(sweep),
            "horizons": draw_horizons(sweep),
            "grid": draw_grid(sweep["grid"], sweep["own"]),
        }

    def judge(self, numbers: Numbers) -> list[Verdict]:
        return [sensitivity_verdict(numbers["sweep"]), cost_verdict(numbers["sweep"], numbers["data"]["classes"])]


def sweep_numbers(study: Study) -> dict[str, Any]:
    """Accuracy against steps, solvers, horizons and stopping times, and the differences within each group."""
    own_config, outcomes, limits = study.solver_config, study.forward_cache.outcomes, study.limits

    def run(images: int, configs: Sequence[SolverConfig]) -> list[Outcome]:
        return sweep(study.model, study.sample.first(images), configs)

    own, few = outcomes[own_config], study.sizes.solvers
    both = run(study.sizes.accurate, [own_config, accurate_config(own_config)])
    coarse, accurate = both[0], both[-1]  # the same one for a model with the accurate solver
    steps = limits.mark_stable([outcomes[config] for config in step_configs(own_config)])
    near = [outcome for outcome in steps if FEWEST <= outcome.solver_config.steps <= MOST]
    horizons = [outcomes[config] for config in horizon_configs(own_config)]
    solvers = limits.mark_stable(run(few, [own_config, *solver_configs(own_config)]))

    def counted(outcome: Outcome) -> bool:
        # An unstable step, and a solver with another rest point than the equation, are errors of the solver and not of
        # the model.
        config, method = outcome.solver_config, outcome.solver_config.method
        rests = isinstance(method, FixedStepSolver) and method.rests_with_equation
        return config == own_config or bool(outcome.stable and (rests or config.name == own_config.name))

    return {
        "own": own,
        "top1": Proportion.of(own.right),
        "steps": steps,
        "horizons": horizons,
        "stops": [outcomes[config] for config in path_configs(own_config) if config.steps <= own_config.steps],
        "solvers": solvers,
        "accurate": {
            **accurate.to_dict(),
            "difference": accurate.top1 - coarse.top1,
            "error": paired_error(accurate.right, coarse.right),
        },
        "grid": limits.mark_stable(run(few, grid_configs(own_config))),
        "spreads": {
            "steps": accuracy_range([one for one in near if counted(one)]),
            "solvers": accuracy_range([one for one in solvers if counted(one)]),
            "horizons": accuracy_range(horizons),
        },
    }


def accuracy_range(outcomes: Sequence[Outcome]) -> dict[str, Any] | None:
    """max top-1 - min top-1 on the same images, with the standard error of that one difference.

    The error is that of the two outcomes and does not account for their selection: the largest of several differences
    is larger than a typical one by chance alone.
    """
    if len(outcomes) < 2:
        return None
    lowest, highest = (pick(outcomes, key=lambda outcome: outcome.top1) for pick in (min, max))
    counts = [outcome.solver_config.steps for outcome in outcomes]
    return {
        "ways": len(outcomes),
        "images": highest.images,
        "steps": [min(counts), max(counts)],
        "difference": highest.top1 - lowest.top1,
        "error": paired_error(highest.right, lowest.right),
        "lowest": lowest,
        "highest": highest,
        "agreement": min(outcome.agreement for outcome in outcomes),
    }


def sensitivity_verdict(sweep: Numbers) -> Verdict:
    """Does the answer depend on how it was integrated?"""
    spreads = {name: group for name, group in sweep["spreads"].items() if group}
    if not spreads:
        return Verdict(SolverSensitivity.title, "unknown", None, ("Nothing to compare.",))
    names = {
        "steps": "{} to {} steps of its own solver".format(*spreads["steps"]["steps"]) if "steps" in spreads else "",
        "solvers": "solvers with the equation's rest point, within their stability limit",
        "horizons": "one to eight times the horizon",
    }
    judged = {_judge(group) for group in spreads.values()}
    answer = next(word for word in ("yes", "slightly", TOO_FEW, "no") if word in judged)
    sentences = [
        f"Over {names[name]} accuracy {_lies(group)}: {_points(group)}. At "
        f"least {percent(group['agreement'])} of the answers are those with its own settings."
        for name, group in spreads.items()
    ]
    accurate = sweep["accurate"]
    keeps = accurate["difference"] >= -max(SAME_ACCURACY, SIGMAS * accurate["error"])
    sentences.append(
        f"A solver that is more accurate than the one it was trained with ({accurate['solver']}, "
        f"{accurate['nfe']:.0f} evaluations) {'keeps' if keeps else 'loses'} its accuracy: "
        f"{_points(accurate, '+.2f')}."
    )
    return Verdict(SolverSensitivity.title, answer, None if answer == TOO_FEW else answer == "no", tuple(sentences))


def cost_verdict(sweep: Numbers, classes: int) -> Verdict:
    """How many evaluations are enough?"""
    question, own = "How many evaluations are enough?", sweep["own"]
    if own["finite"] < 1:
        return Verdict(question, "unknown", None, ("The model's own settings do not give finite answers.",))
    if sweep["top1"]["interval"][0] <= 1 / classes:
        guess = f"which is not surely better than guessing among {classes} classes."
        return Verdict(question, "unknown", None, (f"It is right on {share_of(sweep['top1'])}, {guess}",))
    coarser, earlier = (fewest(sweep[name], own["top1"]) for name in ("steps", "stops"))
    sentences = (
        f"As configured the model evaluates its field {own['nfe']:.0f} times per image and is right on "
        f"{percent(own['top1'])}.",
        _savings("fewer, longer steps over the same horizon", coarser, own),
        _savings("stopping earlier on its own path", earlier, own),
    )
    nfe = min((outcome["nfe"] for outcome in (coarser, earlier) if outcome is not None), default=own["nfe"])
    if nfe >= own["nfe"]:
        return Verdict(question, f"all {own['nfe']:.0f} of them", None, sentences)
    return Verdict(question, f"{nfe:.0f} of {own['nfe']:.0f}", True, sentences)


def fewest(outcomes: Sequence[Numbers], reference: float) -> Numbers | None:
    """The cheapest outcome that, with every more expensive one, loses at most `ENOUGH` of the reference accuracy."""
    cheapest = None
    for outcome in sorted(outcomes, key=lambda outcome: -outcome["nfe"]):
        if outcome["top1"] < reference - ENOUGH:
            break
        cheapest = outcome
    return cheapest


def _savings(by: str, outcome: Numbers | None, own: Numbers) -> str:
    if outcome is None or outcome["nfe"] >= own["nfe"]:
        return f"By {by} nothing can be saved: fewer evaluations lose more than {100 * ENOUGH:.1f} points."
    return f"By {by}, {outcome['nfe']:.0f} are enough: right on {percent(outcome['top1'])}."


def draw_steps(sweep: Numbers) -> Figure:
    """Accuracy against evaluations, a line per solver; beyond its stability limit hollow (the paper's Fig. 8)."""
    figure, (axes,) = make_figure(4.4)
    own, accurate = sweep["own"], sweep["accurate"]
    lines = {f"{own['solver']}, its own": list(sweep["steps"])}
    for outcome in sweep["solvers"]:
        if outcome["solver"] != own["solver"]:
            lines.setdefault(outcome["solver"], []).append(outcome)
    # Other solvers are tried on fewer images: only differences on the same images can be compared.
    base = {one["images"]: one["top1"] for one in (own, *sweep["solvers"]) if _settings(one) == _settings(own)}
    base[accurate["images"]] = accurate["top1"] - accurate["difference"]

    def gain(outcome: Numbers) -> float:
        return 100 * (outcome["top1"] - base[outcome["images"]])

    # Outcomes that diverge are drawn at the lower edge with their number; to scale they would flatten the others.
    counted = [*sweep["steps"], *(outcome for outcome in sweep["solvers"] if outcome["stable"] is not False), accurate]
    floor = min(gain(outcome) for outcome in counted) - 3
    for i, (name, outcomes) in enumerate(lines.items()):
        style = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)]}
        style["linestyle"] = "-" if i < len(COLOURS) else "--"
        ordered = sorted(outcomes, key=lambda outcome: outcome["nfe"])
        nfe, gains = [outcome["nfe"] for outcome in ordered], [gain(outcome) for outcome in ordered]
        axes.plot(nfe, gains, **style, linewidth=2.2 if i == 0 else 1.3, markersize=5, label=words(name))
        for outcome in ordered:
            if outcome["stable"] is False:
                spot = (outcome["nfe"], max(gain(outcome), floor + 0.04 * (3 - floor)))
                axes.plot(*spot, **{**style, "linestyle": ""}, markersize=8, markerfacecolor="white", zorder=4)
                if gain(outcome) < floor:
                    annotate(axes, format_signed(gain(outcome), 0), spot, (7, -3), fontsize=9)
    star = {"color": "black", "marker": "*", "markersize": 10, "capsize": 3, "linestyle": ""}
    name = f"{accurate['solver']}, to a tolerance"
    axes.errorbar([accurate["nfe"]], [gain(accurate)], [100 * accurate["error"]], **star, label=name)
    axes.axhline(0.0, color=GREY, linewidth=1, linestyle="--", zorder=1)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set(xlabel="evaluations of the field (log axis)", ylabel="accuracy minus that of its own settings (points)")
    axes.set_ylim(bottom=floor)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5))
    title, group = f"Other steps and solvers against its own {percent(own['top1'])}", sweep["spreads"]["steps"]
    if group is not None:
        title += "; {:.1f} points over {} to {} steps".format(100 * group["difference"], *group["steps"])
    return finish_figure(figure, title)


def draw_horizons(sweep: Numbers) -> Figure:
    """Accuracy and agreement against the time at which the model's own path ends."""
    figure, (axes,) = make_figure(3.6)
    own = sweep["own"]["horizon"]
    read = {outcome["horizon"]: outcome for outcome in [*sweep["stops"], *sweep["horizons"]]}
    times = sorted(read)
    for key, name, colour, marker in (
        ("top1", "accuracy", BLUE, "o"),
        ("agreement", "same answer as at its own horizon", ORANGE, "s"),
    ):
        shares = [100 * read[time][key] for time in times]
        axes.plot(times, shares, color=colour, marker=marker, markersize=4, linewidth=1.8, label=name)
    mark_horizon(axes, own, height=0.05)
    axes.set_xscale("log", base=2)
    ticks = [own * share for share in (0.25, 0.5, 1, 2, 4, 8)]
    axes.set_xticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set(xlabel="time at which the path ends (log axis)", ylabel="images (%)")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    group = sweep["spreads"]["horizons"]
    varies = f" varies by {100 * group['difference']:.1f} points from 1x to 8x its horizon" if group else ""
    return finish_figure(figure, f"Accuracy along the model's own path{varies}")


def draw_grid(grid: Sequence[Numbers], own: Numbers) -> Figure:
    """Accuracy for every horizon and number of steps; a star where the step is unstable (the paper's Fig. 7)."""
    figure, (axes,) = make_figure(4.0)
    horizons, counts = (sorted({outcome[key] for outcome in grid}) for key in ("horizon", "steps"))
    values = np.full((len(horizons), len(counts)), np.nan)
    accuracies = [100 * outcome["top1"] for outcome in grid]
    worst, best = min(accuracies), max(accuracies)
    for outcome, value in zip(grid, accuracies, strict=True):
        row, column = horizons.index(outcome["horizon"]), counts.index(outcome["steps"])
        values[row, column] = value
        text = f"{value:.1f}" + ("*" if outcome["stable"] is False else "")
        colour = "white" if value < (worst + best) / 2 else "black"
        axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=11)
        if _settings(outcome)[1:] == _settings(own)[1:]:
            axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor=ORANGE, linewidth=3))
    image = axes.imshow(values, origin="lower", aspect="auto", cmap="cividis", vmin=worst, vmax=best)
    axes.set_xticks(range(len(counts)), labels=counts)
    axes.set_yticks(range(len(horizons)), labels=[f"{time:g}  ({time / own['horizon']:g}x)" for time in horizons])
    axes.set(xlabel="steps", ylabel="horizon T (unit of time)")
    figure.colorbar(image, ax=axes, label="top-1 accuracy (%)")
    stable = [100 * outcome["top1"] for outcome in grid if outcome["stable"] is not False]
    accuracy = span(f"{min(stable):.1f}", f"{max(stable):.1f}") if stable else ""
    result = f"{accuracy}% where the step is stable" if stable else "no stable step"
    return finish_figure(figure, f"Accuracy by horizon and steps: {result} (* beyond its limit)")


def _settings(outcome: Numbers) -> tuple[str, int, float]:
    return outcome["solver"], outcome["steps"], outcome["horizon"]


def _at(outcome: Numbers) -> str:
    return "{} ({}, {} steps, T = {:g})".format(
        percent(outcome["top1"]), words(outcome["solver"]), *_settings(outcome)[1:]
    )


def _lies(group: Numbers) -> str:
    lowest, highest = group["lowest"], group["highest"]
    if percent(lowest["top1"]) == percent(highest["top1"]):
        return f"is {percent(lowest['top1'])} with all of {group['ways']} settings"
    return f"lies between {_at(lowest)} and {_at(highest)}"


def _points(group: Numbers, form: str = ".2f") -> str:
    """A difference with its error; the error is 0 where the difference is the same on all images."""
    points, images = f"{number(100 * group['difference'], form)} points", f"{group['images']:,} images"
    if group["error"]:
        return f"{points} ± {number(100 * group['error'], '.2g')}, the standard error of a difference on {images}"
    return f"{points} on every one of {images}" if group["difference"] else f"no difference on any of {images}"


def _judge(group: Numbers) -> str:
    noise = SIGMAS * group["error"]
    if group["agreement"] < OTHER_ANSWERS or group["difference"] > max(OTHER_ACCURACY, noise):
        return "yes"
    if group["difference"] > max(SAME_ACCURACY, noise) or group["agreement"] < SAME_ANSWERS:
        return "slightly"
    return "no" if group["difference"] <= OTHER_ACCURACY else TOO_FEW
