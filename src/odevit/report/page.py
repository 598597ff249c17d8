"""Helpers of a page: how its sentences and templates write numbers, and what its figures have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from odevit.plotting import GREY, nan_for_none


def number(value: float | None, form: str = ".3g") -> str:
    """Three digits, unless another form is given, with a true minus sign; a dash for None."""
    return "–" if value is None else f"{value:{form}}".replace("-", "−")


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}%"


def span(low: str, high: str) -> str:
    """A range, or one number where both ends round to the same."""
    return low if low == high else f"{low} to {high}"


def with_error(share: Mapping[str, Any], form: str = "{} ± {}") -> str:
    """A share with its standard error, both in percent; where the error rounds to 0, with its interval."""
    value = percent(share["value"])
    if share["error"] is None:
        return value
    if (error := f"{100 * share['error']:.1f}") != "0.0":
        return form.format(value, error)
    ends = span(*map(percent, share["interval"]))
    return value if ends == value else f"{value} (95% interval {ends})"


def share_of(share: Mapping[str, Any]) -> str:
    """`with_error` within a sentence."""
    return with_error(share, "{} (± {})")


def small_share(share: float) -> str:
    """A share in percent with two digits."""
    return "less than 0.001%" if share < 1e-5 else f"{100 * share:.2g}%" if share < 0.1 else f"{100 * share:.0f}%"


def of_norm(share: float | None) -> str:
    """A distance as a share, or as a multiple, of a state's norm."""
    if share is None:
        return "no finite distance"
    return f"{share:,.0f} times its norm" if share >= 10 else f"{small_share(share)} of its norm"


def words(name: str) -> str:
    return name.replace("_", " ")


FILTERS = {
    **{filter_.__name__: filter_ for filter_ in (number, percent, with_error, share_of, words)},
    "count": "{:,}".format,
}
"""Jinja filters for numbers: `{{ images | count }}`."""


def band(axes: Any, x: Any, numbers: Mapping[str, Any], *keys: str, around: str = "", **style: Any) -> None:
    """A line and the range around it, by the keys of low, middle and high; null leaves a gap."""
    low, middle, high = (nan_for_none(numbers[key]) for key in keys)
    axes.fill_between(x, low, high, color=style["color"], alpha=0.2, linewidth=0, label=around)
    axes.plot(x, middle, **style)


def annotate(axes: Any, text: str, spot: tuple[float, float], shift: tuple[float, float], **style: Any) -> Any:
    """Text at a point of a figure, `shift` points to the right and up."""
    return axes.annotate(text, spot, xytext=shift, textcoords="offset points", **style)


def mark_horizon(axes: Any, horizon: float, height: float) -> None:
    """A dashed line at the model's own horizon, with its name at a height from 0 to 1."""
    axes.axvline(horizon, color=GREY, linestyle="--", linewidth=1)
    style = {"xycoords": ("data", "axes fraction"), "va": "center", "color": GREY}
    annotate(axes, "its horizon", (horizon, height), (5, 0), **style)
