"""top-1(fewer evaluations) >= top-1 - 0.5 points: how many evaluations are enough?"""

from __future__ import annotations

from collections.abc import Sequence

from odevit.report.page import percent, share_of
from odevit.report.section import Numbers, Verdict

ENOUGH = 0.005
"""Evaluations are enough when they, and every larger number tried, lose at most this much accuracy."""


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
