"""|dx/dt| -> 0, lambda < 0: do trajectories converge to a rest point, and what do the exceptions do?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from odevit.analysis.lyapunov import divergence_step, lyapunov_time
from odevit.analysis.settling import (
    DOUBTFUL,
    FAR,
    WINDOW,
    LargestExponents,
    MotionType,
    classify_motion,
    measure_spectrum,
)
from odevit.analysis.significance import PERCENTILES, Proportion, median, quantiles
from odevit.core.solver_config import SolverConfig
from odevit.plotting import BLUE, GREY, ORANGE, finish_figure, make_figure, nan_for_none
from odevit.report.page import annotate, band, mark_horizon, number, of_norm, percent, share_of, span
from odevit.report.section import SECTIONS, TOO_FEW, Figures, Numbers, Section, Verdict
from odevit.report.study import Study

SETTLED_SHARE, SETTLED_CHANGE = 0.95, 0.01
RESTLESS_SHARE, RESTLESS_CHANGE = 0.5, 0.1
"""Share of negative exponents, and change of the median state in a further horizon, on either side of the verdict."""
_STOPPED = (
    "Its velocity fades after the horizon and is 0 from t = {:g} on: every state stays where it is then. This follows "
    "from the form of the equation and not from its weights: disturbances neither grow nor die out."
)
LEADING = 4
"""Exponents of the spectrum."""
PARTS = (("path", "along the path", BLUE), ("rest", "at rest", ORANGE))


@SECTIONS.register("settling")
class Convergence(Section):
    """Speed, exponents, spectrum, and the motion of the exceptions."""

    title = "Does it settle?"
    order = 10
    thresholds = (
        f"It settles: at least {SETTLED_SHARE:.0%} of the exponents at rest are negative (lower end of the 95% "
        f"interval) and the median state changes by less than {SETTLED_CHANGE:.0%} of its norm in one more horizon. It "
        f"does not: at most {RESTLESS_SHARE:.0%} are negative (upper end), or it changes by more than "
        f"{RESTLESS_CHANGE:.0%}. Where the share meets a threshold and its interval does not, there are too few images "
        "to say.",
    )

    text = """
{% set path, rest, stopped = exponents.path, exponents.rest, exceptions.get("stopped") %}
{% call picture("speed") %}Relative speed of the model's own steps, up to eight horizons;
{{ speed.images | count }} images.{% endcall %}
{% call picture("exponents") %}Largest exponent of {{ path.images | count }} images, for the model's own steps.
Along the path it is the mean growth over a short time: {{ path.not_converged.value | percent }} of those values have
not converged to a limit.
{% if not stopped %}At rest, after eight horizons, {{ rest.not_converged.value | percent }} have
not.{% if rest.prolonged %} {{ rest.prolonged }} with a doubtful sign were measured for longer.{% endif %}{% endif %}
{% endcall %}
{% call table("", "negative", "mean λ", "largest λ", "not converged", "positive", "Lyapunov time",
              "diverges at step") %}
{% for name, part in (("along the path", path), ("at rest", rest))[: 1 if stopped else 2] %}
{{ row(name, part.negative | with_error, (part.mean | number) ~ " ± " ~ (part.mean_error | number),
       part.largest | number, part.not_converged.value | percent, part.positive.count,
       part.positive.lyapunov_time.median | number, part.positive.divergence_step.median | number) }}
{% endfor %}
{% endcall %}
{% call small() %}Lyapunov time and step: medians over the images with a positive exponent, a dash where there are none.
The step is the first at which a disturbance has grown by the factor e, if that is within the horizon.{% endcall %}
{% call picture("spectrum") %}Directions in which disturbances die out most slowly, {{ exponents.spectrum.images }}
images. Exponents that have not converged need not be in the order of their size.{% endcall %}
<h3>Exceptions</h3>
{% if stopped %}
<p>None: a state whose velocity is 0 has an exponent of 0.</p>
{% elif not exceptions.count %}
<p>There are none: every exponent at rest is negative.</p>
{% else %}
<p>{{ exceptions.count }} images have an exponent at rest that is not negative. {{ exceptions.looked_at }} of them were
integrated for a further time of {{ "%g" % exceptions.window }}.</p>
{% call table("image", "label", "answer", "λ at rest", "it", "moves", "straight", "turn", "margin", "between") %}
{% for it in exceptions.rows %}
{{ row(it.image, it.label, it.answer, (it.exponent | number) ~ ("" if it.converged else " (not converged)"), it.kind,
       it.moved | number, it.straight | number, it.turn | number, it.margin | number,
       it.answers | join(" / ") if it.between else "") }}
{% endfor %}
{% endcall %}
{% call small() %}Moves: length of the path in units of the state's norm; below 0.001 it rests. Turn: lowest
autocorrelation of its displacements; below −0.5 it oscillates. Straight: net displacement by length; above 0.5 it
drifts, otherwise it wanders. Between: median margin p₁ − p₂ below 0.1, or more than one answer along the
path.{% endcall %}
{% endif %}
"""

    def measure(self, study: Study) -> dict[str, Any]:
        path, rest = study.exponents
        return {
            "speed": speed_numbers(study),
            "exponents": {
                "path": exponent_numbers(path, study.solver_config),
                "rest": exponent_numbers(rest, study.solver_config),
                "spectrum": spectrum_numbers(study),
            },
            "exceptions": exception_numbers(study, rest),
        }

    def draw(self, numbers: Numbers, pictures: Tensor) -> Figures:
        exponents = numbers["exponents"]
        # Where the velocity is 0, the exponents at rest are 0 but for rounding.
        parts = PARTS[:1] if numbers["exceptions"].get("stopped") else PARTS
        return {
            "speed": draw_speed(numbers["speed"]),
            "exponents": draw_exponents({part: exponents[part] for part, *_ in parts}),
            "spectrum": draw_spectrum(exponents["spectrum"], parts),
        }

    def judge(self, numbers: Numbers) -> list[Verdict]:
        """Do trajectories converge?"""
        rest, exceptions = numbers["exponents"]["rest"], numbers["exceptions"]
        share, change = rest["negative"], numbers["speed"]["change_per_horizon"]
        low, high = share["interval"]
        if stopped := numbers.get("model", {}).get("stopped_at"):
            return [Verdict(self.title, "it is stopped", None, (_STOPPED.format(stopped),))]
        slow = change is not None and change < SETTLED_CHANGE
        undecided = None
        if low >= SETTLED_SHARE and slow:
            answer = "yes"
        elif high <= RESTLESS_SHARE or change is None or change > RESTLESS_CHANGE:
            answer = "no"
        else:
            settled, restless = share["value"] >= SETTLED_SHARE and slow, share["value"] <= RESTLESS_SHARE
            undecided = SETTLED_SHARE if settled else RESTLESS_SHARE if restless else None
            answer = "partly" if undecided is None else TOO_FEW
        needed = undecided and Proportion(share["hits"], share["count"]).sample_size(undecided)
        sentences = [
            f"After eight times its horizon a small disturbance dies out for {percent(share['value'])} of "
            f"{share['count']:,} images (largest Lyapunov exponent below zero; 95% interval "
            f"{span(percent(low), percent(high))})."
            + (f" With the same share, {needed:,} images would decide." if needed else ""),
            "The trajectories are not finite there."
            if change is None
            else f"The median state would change by {of_norm(change)} in one more horizon.",
            _certainty(rest),
        ]
        if exceptions["count"]:
            sentences.append(_exceptions(exceptions))
        return [Verdict(self.title, answer, None if answer == TOO_FEW else answer == "yes", tuple(sentences))]


def speed_numbers(study: Study) -> dict[str, Any]:
    """Median and middle 90% of the relative speed at each time, and the relative change in one more horizon."""
    forward_cache, horizon = study.forward_cache, study.solver_config.horizon
    band = quantiles(forward_cache.speed, {"low": 0.05, "median": 0.5, "high": 0.95})
    return {
        "images": forward_cache.speed.shape[1],
        "times": forward_cache.times,
        **band,
        "horizon": horizon,
        "change_per_horizon": band["median"][-1] * horizon,
        "falls": (band["median"].diff() <= 0).all(),
    }


def exponent_numbers(maximal: LargestExponents, solver_config: SolverConfig) -> dict[str, Any]:
    """The exponents and their statistics; values that are not finite count as not negative."""
    values, converged = maximal.values, maximal.converged
    growing = values[values > 0]
    steps = divergence_step(growing, solver_config.steps, solver_config.horizon)
    return {
        "images": len(values),
        "values": values,
        "errors": maximal.error,
        "converged": converged,
        "negative": maximal.negative,
        "not_converged": maximal.not_converged,
        "negative_of_converged": Proportion.of(values[converged] < 0),
        "mean": maximal.mean,
        "mean_error": maximal.mean_error,
        "quantiles": quantiles(values, PERCENTILES),
        "largest": maximal.largest,
        "prolonged": maximal.prolonged.sum(),
        "positive": {
            "count": len(growing),
            "lyapunov_time": {"median": median(lyapunov_time(growing))},
            "diverges_within_the_horizon": (steps >= 0).sum(),
            "divergence_step": {"median": median(steps[steps >= 0])},
        },
        "running": {"times": maximal.times, "mean": maximal.running},
    }


def spectrum_numbers(study: Study) -> dict[str, Any]:
    """The leading exponents of a few images, along the path and at rest."""
    x0 = study.sample.start(study.sizes.spectrum)
    k = min(LEADING, x0[0].numel())
    both = measure_spectrum(
        study.model.field, study.solver_config, x0, study.forward_cache.rest[0][: len(x0)], k, seed=study.seed
    )
    parts = {
        part: {"values": spectrum.values, "errors": spectrum.error, "converged": spectrum.converged}
        for (part, _, _), spectrum in zip(PARTS, both, strict=True)
    }
    return {"images": len(x0), "k": k, **parts}


def exception_numbers(study: Study, rest: LargestExponents) -> dict[str, Any]:
    """The motion of each image whose exponent at rest is not negative; none where the velocity fades to 0."""
    sample, answers = study.sample, study.answers
    stopped = getattr(study.model.field, "fade", None) is not None
    exceptions = torch.zeros_like(rest.values, dtype=torch.bool) if stopped else ~(rest.values < 0)
    watched = exceptions & (exceptions.cumsum(dim=0) <= DOUBTFUL)
    motions: list[MotionType] = []
    sizes = [len(states) for states in study.forward_cache.rest]
    for chunk, states, here in zip(sample.chunks, study.forward_cache.rest, watched.split(sizes), strict=True):
        if here.any():
            motions += classify_motion(study.model, states[here], chunk["x0"][here], FAR * study.solver_config.horizon)
    rows = [
        {
            "image": sample.indices[i],
            "label": sample.classes[answers["labels"][i]],
            "answer": sample.classes[answers["answers"][i]],
            "exponent": rest.values[i],
            "error": rest.error[i],
            "converged": rest.converged[i],
            **vars(motion),
            "answers": [sample.classes[label] for label in motion.answers],
        }
        for i, motion in zip(watched.nonzero().flatten().tolist(), motions, strict=True)
    ]
    return {
        "stopped": stopped,
        "count": exceptions.sum(),
        "looked_at": len(rows),
        "window": WINDOW * study.solver_config.horizon,
        "kinds": dict(sorted(Counter(row["kind"] for row in rows).items())),
        "between": sum(row["between"] for row in rows),
        "wrong": sum(row["label"] != row["answer"] for row in rows),
        "rows": rows,
    }


def draw_speed(speed: Numbers) -> Figure:
    """Relative speed against time: the median image and the middle 90% of them."""
    figure, (axes,) = make_figure(3.4)
    times, median = speed["times"], nan_for_none(speed["median"])
    style = {"color": BLUE, "linewidth": 2, "label": "median image"}
    band(axes, times, speed, "low", "median", "high", around="middle 90% of the images", **style)
    mark_horizon(axes, speed["horizon"], height=0.95)
    if any(value > 0 for value in median):
        axes.set_yscale("log")
    axes.set(xlabel="time t", ylabel="|dx/dt| / |x|  (1 / unit of time)", xlim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, loc="upper right", bbox_to_anchor=(1.0, 0.92))
    return finish_figure(
        figure, f"Speed of the state: {median[0]:.2g} at the start, {median[-1]:.1g} at t = {times[-1]:.3g}"
    )


def draw_exponents(parts: Mapping[str, Numbers]) -> Figure:
    """Histograms of the largest exponent, for each of the given parts."""
    figure, (axes,) = make_figure(3.6)
    groups = [
        ([value for value in parts[part]["values"] if value is not None], name, colour)
        for part, name, colour in PARTS
        if part in parts
    ]
    everything = [0.0, *chain.from_iterable(values for values, _, _ in groups)]
    low, high = min(everything), max(everything)
    edges = list(np.linspace(low, high, 50))
    for values, name, colour in groups:
        if values:
            axes.hist(values, bins=edges, color=colour, alpha=0.65, label=f"{name} ({len(values):,} images)")
    axes.axvline(0.0, color="black", linewidth=1.2)
    for word, shift, side in (("grows →", 4, "left"), ("← dies out", -4, "right")):
        annotate(axes, word, (0.0, 0.9), (shift, 0), xycoords=("data", "axes fraction"), fontsize=9, ha=side)
    axes.set(xlabel="largest Lyapunov exponent λ (1 / unit of time)", ylabel="images")
    axes.grid(alpha=0.3, axis="y")
    axes.set_ylim(top=1.2 * axes.get_ylim()[1])
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    room = 0.2 * (high - low) or 1.0  # for the words on either side of 0
    axes.set_xlim(min(low, -room), max(high, room))
    shares = [f"{percent(parts[part]['negative']['value'])} {name}" for part, name, _ in PARTS if part in parts]
    return finish_figure(figure, f"Negative for {', '.join(shares)}")


def draw_spectrum(spectrum: Numbers, parts: Sequence[tuple[str, str, str]] = PARTS) -> Figure:
    """The leading exponents of a few images, a line each."""
    figure, columns = make_figure(3.2, len(parts), sharey=True)
    order = range(1, spectrum["k"] + 1)
    for axes, (part, name, colour) in zip(columns, parts, strict=True):
        style = {"color": colour, "marker": "o", "markersize": 5, "linewidth": 1, "alpha": 0.8}
        for values, converged in zip(spectrum[part]["values"], spectrum[part]["converged"], strict=True):
            axes.plot(order, nan_for_none(values), **style, markerfacecolor=colour if converged else "white")
        axes.axhline(0.0, color="black", linewidth=1)
        axes.set(title=name, xlabel="number of the exponent", xticks=list(order))
        axes.title.set_color(GREY)
        axes.grid(alpha=0.3)
    columns[0].set_ylabel("λ (1 / unit of time)")
    title = f"The {spectrum['k']} leading exponents of {spectrum['images']} images (hollow: not converged)"
    return finish_figure(figure, title)


def _certainty(rest: Numbers) -> str:
    unsure, mean = rest["not_converged"], rest["mean"]
    if unsure["hits"] == 0:
        average = f"the mean exponent is {number(mean, '.3f')} per unit of time"
        return f"The measurement converged for all of them; {average}."
    average = "no mean is given" if mean is None else f"the mean of all is {number(mean, '.3f')} per unit of time"
    return (
        f"For {share_of(unsure)} the size of the exponent had not converged when the measurement ended; their sign "
        f"counts as measured, and {average}."
    )


def _exceptions(exceptions: Numbers) -> str:
    actions = {
        "rests": "rest",
        "oscillates": "oscillate",
        "drifts": "drift in one direction",
        "wanders": "wander",
        "diverges": "diverge",
    }
    kinds = ", ".join(f"{count} {actions[kind]}" for kind, count in exceptions["kinds"].items())
    count, between, wrong = (exceptions[key] for key in ("count", "between", "wrong"))
    followed = "" if exceptions["looked_at"] == count else f" (the first {exceptions['looked_at']} were followed)"
    are = ["is" if number == 1 else "are" for number in (between, wrong)]
    return (
        f"Of the {count} exception{'' if count == 1 else 's'}{followed}: {kinds}; {between} {are[0]} between two "
        f"classes, {wrong} {are[1]} answered wrongly."
    )
