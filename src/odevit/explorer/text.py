"""lambda, r, d(t) -> words: what the numbers of stability mean."""

from __future__ import annotations

import math

from odevit.analysis.contraction import Radius
from odevit.analysis.lyapunov import Growth
from odevit.analysis.perturbation import Divergence
from odevit.plotting import format_signed


def growth_in_words(growth: Growth) -> str:
    """What the maximal exponent up to the horizon says about small changes."""
    rate, error = float(growth.exponents.values[0, 0]), float(growth.exponents.error[0, 0])
    if not math.isfinite(rate):
        return "The path leaves the finite numbers, so that it has no Lyapunov exponent."
    measured = f"Lyapunov exponent {format_signed(rate)} ± {error:.2f} up to the horizon"
    if abs(rate) <= error:
        return f"Whether a small change grows or dies out cannot be told: {measured}."
    verb, factor = ("shrinks", "dies out") if rate < 0 else ("grows", "grows")
    return f"A small change {factor}: it {verb} by a factor of e in {1 / abs(rate):.2g} units of time ({measured})."


def radius_in_words(radius: Radius, size: float, answer: str, rival: str) -> str:
    """How far the last state is from another answer, `size` being its length."""
    if not bool(radius.found[0]):
        return f"No change of the last state that was tried takes the answer away from {answer}."
    value = float(radius.value[0])
    return (
        f"The answer stays {answer} until the last state is moved by {value:.3g}, {value / size:.1%} of its length; "
        f"then the nearest other answer is {rival} (contraction radius)."
    )


def parting_in_words(parting: Divergence, at_horizon: int, answers: tuple[str, str]) -> str:
    """Whether two paths meet, and whether they give the same answer; `at_horizon` is the number of that state."""
    first, last = float(parting.distance[0]), float(parting.distance[at_horizon])
    far = f"{first:.3g} apart at the start, {last:.3g} at the horizon"
    verb = "meet" if last < first / 2 else "come nearer" if last < first else "part"
    why = (
        " Covering a patch makes another image, whose equation has a rest point of its own."
        if parting.kind == "picture" and verb == "part"
        else ""
    )
    stays, changes = f"The answer stays {answers[0]}.", f"The answer changes from {answers[0]} to {answers[1]}."
    answer = stays if answers[0] == answers[1] else changes
    return f"The two paths {verb}: {far}.{why} {answer}"
