"""numbers, thresholds -> answers: does it settle, does the answer depend on the solver, how much is enough?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Numbers = Mapping[str, Any]

SETTLED_SHARE = 0.95
"""It settles when at least this share of exponents at rest is negative, at the lower end of the 95% interval."""
SETTLED_CHANGE = 0.01
"""And when the median state changes by less than this share of its norm in a further horizon."""
RESTLESS_SHARE = 0.5
"""It does not when at most this share is negative, at the upper end of the interval."""
RESTLESS_CHANGE = 0.1
"""Or when the median state changes by more than this."""

SAME_ACCURACY = 0.01
"""The answer does not depend on a choice that moves accuracy by no more than this, or than `CERTAIN` errors."""
OTHER_ACCURACY = 0.03
"""It does on one that moves it by more than this, and by more than `CERTAIN` standard errors."""
SAME_ANSWERS = 0.95
"""Nor may fewer than this share of the images keep their answer."""
OTHER_ANSWERS = 0.85
"""With fewer than this it depends, whatever the accuracy does."""
CERTAIN = 3.0
"""Standard errors beyond which a difference is real: three, for the two ways shown were picked from several."""

ENOUGH = 0.005
"""Evaluations are enough when they, and every larger number tried, lose at most this much accuracy."""

TOLERANT = 0.95
"""The head tolerates the rest of the way when at least this share of states has a radius larger than it."""
FOLLOWS, PARTS = 0.9, 0.7
"""A student follows its teacher when it gives the same answer this often, and does not below the second."""

THRESHOLDS = (
    f"It settles: at least {SETTLED_SHARE:.0%} of the exponents at rest are negative (lower end of the 95% interval) "
    f"and the median state changes by less than {SETTLED_CHANGE:.0%} of its norm in one more horizon. It does not: at "
    f"most {RESTLESS_SHARE:.0%} are negative (upper end), or it changes by more than {RESTLESS_CHANGE:.0%}.",
    f"The answer does not depend on the integration: over every group of ways accuracy varies by at most "
    f"{100 * SAME_ACCURACY:.0f} point or {CERTAIN:.0f} standard errors, and at least {SAME_ANSWERS:.0%} of the answers "
    f"stay. It does: in some group accuracy varies by more than {100 * OTHER_ACCURACY:.0f} points and {CERTAIN:.0f} "
    f"standard errors, or fewer than {OTHER_ANSWERS:.0%} of the answers stay. Between the two it does slightly.",
    f"Evaluations are enough when they and every larger number tried lose at most {100 * ENOUGH:.1f} points.",
    f"The head tolerates what is left of the way when the radius exceeds it for at least {TOLERANT:.0%} of the states.",
    f"A student follows its teacher when it gives the same answer on at least {FOLLOWS:.0%} of the images, and does "
    f"not on less than {PARTS:.0%}.",
)
"""The rules in words, as the page shows them."""


@dataclass(frozen=True)
class Verdict:
    """A question, its answer, and the numbers behind it.

    Args:
        question: in plain words.
        answer: `yes`, `no`, `partly` or `unknown`, or a short phrase.
        good: whether that is what one hopes for; None where there is nothing to hope.
        sentences: with the numbers.
    """

    question: str
    answer: str
    good: bool | None
    sentences: tuple[str, ...]


def verdicts(numbers: Numbers) -> list[Verdict]:
    """The answers to the questions that a report begins with."""
    return [
        settles(numbers),
        depends(numbers["sweep"]),
        enough(numbers["sweep"], numbers["data"]["classes"]),
        tolerates(numbers["radius"]),
        follows(numbers.get("teacher")),
    ]


def settles(numbers: Numbers) -> Verdict:
    """Does a trajectory come to rest?"""
    rest, speed, exceptions = numbers["exponents"]["rest"], numbers["speed"], numbers["exceptions"]
    share, change = rest["negative"], speed["change_per_horizon"]
    low, high = share["interval"]
    calm = change is not None and change < SETTLED_CHANGE
    if low >= SETTLED_SHARE and calm:
        answer = "yes"
    elif high <= RESTLESS_SHARE or change is None or change > RESTLESS_CHANGE:
        answer = "no"
    else:
        answer = "partly"
    sentences = [
        f"After eight times its horizon a small disturbance dies out for {_share(share)} of {share['count']:,} images "
        f"(largest Lyapunov exponent below zero; 95% interval {_percent(low)} to {_percent(high)}).",
        "The trajectories are no longer finite numbers there."
        if change is None
        else f"The median state would change by {_norm(change)} in one more horizon.",
        _certainty(rest),
    ]
    if exceptions["count"]:
        sentences.append(_exceptions(exceptions))
    return Verdict("Does it settle?", answer, answer == "yes", tuple(each for each in sentences if each))


def depends(sweep: Numbers) -> Verdict:
    """Does the answer depend on how it was integrated?"""
    spreads = {name: each for name, each in sweep["spreads"].items() if each}
    names = {
        "steps": "{} to {} steps of its own solver".format(*spreads["steps"]["steps"]) if "steps" in spreads else "",
        "solvers": "solvers that rest where the equation does, within their stability limit",
        "horizons": "one to eight times the horizon",
    }
    worst = [_dependence(each) for each in spreads.values()]
    if not spreads:
        return Verdict("Does the answer depend on how it was integrated?", "unknown", None, ("Nothing to compare.",))
    answer = "yes" if "yes" in worst else "no" if set(worst) == {"no"} else "slightly"
    sentences = [
        f"Over {names[name]} accuracy lies between {_at(each['lowest'])} and {_at(each['highest'])}: "
        f"{100 * each['difference']:.2f} points ± {100 * each['error']:.2f}, the standard error of a difference on "
        f"{each['images']:,} images. At least {_percent(each['agreement'])} of the answers are those that the model "
        "gives by itself."
        for name, each in spreads.items()
    ]
    accurate = sweep["accurate"]
    kept = "keeps" if accurate["difference"] >= -max(SAME_ACCURACY, CERTAIN * accurate["error"]) else "loses"
    sentences.append(
        f"A solver that is more accurate than the one it was trained with ({accurate['solver']}, "
        f"{accurate['nfe']:.0f} evaluations) {kept} its accuracy: {_signed(accurate['difference'])} points "
        f"± {100 * accurate['error']:.2f} on {accurate['images']:,} images."
    )
    return Verdict("Does the answer depend on how it was integrated?", answer, answer == "no", tuple(sentences))


def enough(sweep: Numbers, classes: int) -> Verdict:
    """How many evaluations are enough?"""
    own = sweep["own"]
    coarser, earlier = (fewest(sweep[name], own["top1"]) for name in ("steps", "stops"))
    question = "How many evaluations are enough?"
    if own["finite"] < 1:
        return Verdict(question, "unknown", None, ("Its own way of integrating does not give finite answers.",))
    if sweep["top1"]["interval"][0] <= 1 / classes:
        line = (
            f"It is right on {_share(sweep['top1'])}, which is not surely better than guessing among {classes} classes."
        )
        return Verdict(question, "unknown", None, (line,))
    sentences = [
        f"By itself the model evaluates its field {own['nfe']:.0f} times an image and is right on "
        f"{_percent(own['top1'])}.",
        _saves("fewer, longer steps over the same horizon", coarser, own),
        _saves("stopping earlier on its own path", earlier, own),
    ]
    best = min((each for each in (coarser, earlier) if each is not None), key=lambda each: each["nfe"], default=None)
    if best is None or best["nfe"] >= own["nfe"]:
        return Verdict(question, f"all {own['nfe']:.0f} of them", None, tuple(sentences))
    return Verdict(question, f"{best['nfe']:.0f} of {own['nfe']:.0f}", True, tuple(sentences))


def fewest(outcomes: Sequence[Numbers], reference: float) -> Numbers | None:
    """The cheapest outcome that, with every dearer one, loses at most `ENOUGH` of the reference accuracy."""
    found = None
    for each in sorted(outcomes, key=lambda each: -each["nfe"]):
        if each["top1"] < reference - ENOUGH:
            break
        found = each
    return found


def tolerates(radius: Numbers) -> Verdict:
    """How far may a state be perturbed?"""
    question = "How far may a state be moved before the answer changes?"
    middle = radius["quantiles"]["50%"]
    if middle is None:
        return Verdict(question, "unknown", None, ("No disturbance that was tried changed an answer.",))
    inside = radius["inside"]
    good = inside["value"] >= TOLERANT
    sentences = [
        f"In the worst direction by {_norm(middle)} (median of {radius['images']} images; 90% lie "
        f"between {_small(radius['quantiles']['5%'])} and {_small(radius['quantiles']['95%'])}); "
        + (
            "in random directions no distance that was tried changed the median answer."
            if radius["random_median"] is None
            else f"in a random direction by {_norm(radius['random_median'])}."
        ),
        f"Going on from the horizon to eight of them moves the state by {_norm(radius['move_median'])} in the median, "
        f"which is less than that radius for {_share(inside)} of them: "
        + (
            "whatever its direction, it cannot change those answers."
            if good
            else "so its length does not rule out that an answer changes on the way; how many do is counted above."
        ),
    ]
    return Verdict(question, _norm(middle), True if good else None, tuple(sentences))


def follows(teacher: Numbers | None) -> Verdict:
    """Does a student follow its teacher?"""
    question = "Does it follow its teacher?"
    if teacher is None:
        return Verdict(question, "it has none here", None, ("The run has no teacher at hand; that part is left out.",))
    agreement = teacher["agreement"]
    value = agreement["value"]
    answer = "yes" if value >= FOLLOWS else "no" if value < PARTS else "partly"
    layers = teacher["by_layer"]
    sentences = [
        f"It gives its teacher's answer on {_share(agreement)} of {agreement['count']:,} images, and is right on "
        f"{_percent(teacher['student_top1']['value'])} where the teacher is on {_percent(teacher['top1']['value'])}.",
        f"At the last layer its distance ({teacher['token']}) is {layers['median'][-1]:.3g} in the median, "
        f"{_small(teacher['relative']['by_layer']['median'][-1])} of the teacher's norm; a student that never moved "
        f"would be at {layers['standstill'][-1]:.3g}.",
    ]
    told = teacher["tells_disagreement"]
    if told is not None:
        sentences.append(
            f"An image on which they disagree is further away than one on which they agree in {told:.0%} of all pairs "
            "(50% would mean that distance tells nothing)."
        )
    if teacher["right_is_nearer"] is not None:
        sentences.append(_nearer(teacher))
    return Verdict(question, answer, answer == "yes", tuple(sentences))


def side_of_chance(ranking: Numbers) -> int:
    """1 where a share of pairs is more than 1/2 by `CERTAIN` errors of chance, -1 where it is less, 0 in between."""
    beyond = ranking["value"] - 0.5
    return 0 if abs(beyond) <= CERTAIN * ranking["error"] else 1 if beyond > 0 else -1


def _nearer(teacher: Numbers) -> str:
    words = {1: "yes", 0: "no difference beyond chance", -1: "no, farther"}
    absolute, relative = teacher["right_is_nearer"], teacher["relative"]["right_is_nearer"]
    return (
        "Is it nearer at the last layer where both are right, as the paper claims? "
        f"By |x − h|: {words[side_of_chance(absolute)]} (nearer in {absolute['value']:.0%} of all pairs of such an "
        f"image with another). By |x − h| / |h|: {words[side_of_chance(relative)]} ({relative['value']:.0%}). "
        f"Chance gives 50% ± {100 * absolute['error']:.1f}."
    )


def _dependence(spread: Numbers) -> str:
    if spread["agreement"] < OTHER_ANSWERS:
        return "yes"
    noise = CERTAIN * spread["error"]
    if spread["difference"] > max(OTHER_ACCURACY, noise):
        return "yes"
    same = spread["difference"] <= max(SAME_ACCURACY, noise) and spread["agreement"] >= SAME_ANSWERS
    return "no" if same else "slightly"


def _certainty(rest: Numbers) -> str:
    open_share = rest["not_converged"]
    if open_share["hits"] == 0:
        return (
            f"The measurement converged for all of them; the mean exponent is {_exponent(rest['mean'])} per unit time."
        )
    mean = (
        "no mean is given" if rest["mean"] is None else f"the mean of all is {_exponent(rest['mean'])} per unit of time"
    )
    return (
        f"For {_share(open_share)} the size of the exponent had not converged when the measurement ended; their sign "
        f"counts as it was found, and {mean}."
    )


def _exceptions(exceptions: Numbers) -> str:
    words = {
        "rests": "stand still nevertheless",
        "oscillates": "go round in circles",
        "drifts": "drift on in one direction",
        "wanders": "wander",
        "diverges": "leave the finite numbers",
    }
    kinds = ", ".join(f"{count} {words[kind]}" for kind, count in exceptions["kinds"].items())
    looked = "" if exceptions["looked_at"] == exceptions["count"] else f" (the first {exceptions['looked_at']} seen)"
    one = exceptions["count"] == 1
    return (
        f"Of the {exceptions['count']} exception{'' if one else 's'}{looked}: {kinds}; {exceptions['between']} "
        f"sit{'s' if exceptions['between'] == 1 else ''} between two classes, {exceptions['wrong']} "
        f"{'is' if exceptions['wrong'] == 1 else 'are'} answered wrongly."
    )


def _saves(how: str, found: Numbers | None, own: Numbers) -> str:
    if found is None or found["nfe"] >= own["nfe"]:
        return f"By {how} nothing can be saved: fewer evaluations lose more than {100 * ENOUGH:.1f} points."
    return f"By {how}, {found['nfe']:.0f} are enough: right on {_percent(found['top1'])}."


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def _share(share: Numbers) -> str:
    return f"{_percent(share['value'])} (± {100 * share['error']:.1f})"


def _at(outcome: Numbers) -> str:
    way = f"{outcome['solver'].replace('_', ' ')}, {outcome['steps']} steps, T = {outcome['horizon']:g}"
    return f"{_percent(outcome['top1'])} ({way})"


def _signed(difference: float) -> str:
    return f"{100 * difference:+.2f}".replace("-", "−")


def _exponent(value: float) -> str:
    return f"{value:.3f}".replace("-", "−")


def _norm(share: float | None) -> str:
    if share is None:
        return "no finite distance"
    return f"{share:,.0f} times its norm" if share >= 10 else f"{_small(share)} of its norm"


def _small(share: float) -> str:
    """A share in percent, down to a size at which it is nothing."""
    if share < 1e-5:
        return "less than 0.001%"
    return f"{100 * share:.2g}%" if share < 0.1 else f"{100 * share:.0f}%"
