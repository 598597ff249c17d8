"""lambda, r, d(t) -> sentences: what the measurements of stability mean."""

from __future__ import annotations

import math

from odevit.analysis.contraction import Radius
from odevit.analysis.lyapunov import Growth
from odevit.analysis.perturbation import Divergence
from odevit.plotting import format_signed


def describe_growth(growth: Growth) -> str:
    """Whether small changes grow or shrink, from the largest Lyapunov exponent up to the horizon."""
    rate, error = float(growth.exponents.values[0, 0]), float(growth.exponents.error[0, 0])
    if not math.isfinite(rate):
        return "The state becomes infinite or NaN, so there is no Lyapunov exponent."
    measured = f"Lyapunov exponent {format_signed(rate)} ± {error:.2f} up to the horizon"
    if abs(rate) <= error:
        return f"A small change neither clearly grows nor clearly shrinks: {measured}."
    verb = "shrinks" if rate < 0 else "grows"
    return f"A small change {verb} by a factor of e in {1 / abs(rate):.2g} units of time ({measured})."


def describe_radius(radius: Radius, size: float, label: str, rival: str) -> str:
    """How far the final state, of norm `size`, is from another prediction."""
    if not bool(radius.found[0]):
        return f"None of the tested changes of the final state changes the prediction {label}."
    value = float(radius.value[0])
    return (
        f"The prediction stays {label} until the final state is moved by {value:.3g}, {value / size:.1%} of its norm; "
        f"beyond that it becomes {rival} (contraction radius)."
    )


def describe_divergence(divergence: Divergence, at_horizon: int, labels: tuple[str, str]) -> str:
    """Whether two paths converge, and whether their predictions agree; `at_horizon` is the index of that state."""
    first, last = float(divergence.distance[0]), float(divergence.distance[at_horizon])
    verb = "converge" if last < first / 2 else "come closer" if last < first else "diverge"
    reason = (
        " A masked patch makes another image, whose ODE has a fixed point of its own."
        if divergence.kind == "picture" and verb == "diverge"
        else ""
    )
    same, changed = f"The prediction stays {labels[0]}.", f"The prediction changes from {labels[0]} to {labels[1]}."
    prediction = same if labels[0] == labels[1] else changed
    return f"The two paths {verb}: distance {first:.3g} at the start, {last:.3g} at the horizon.{reason} {prediction}"
