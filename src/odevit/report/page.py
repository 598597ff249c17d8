"""numbers, figures -> a page of HTML that needs nothing beside it, and how numbers are written in it."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined


@dataclass(frozen=True)
class Verdict:
    """A question, its answer, and the sentences with the numbers behind it.

    The answer is `yes`, `no`, `partly`, `unknown` or a short phrase; `good` says whether that is what one hopes for,
    and is None where there is nothing to hope for.
    """

    question: str
    answer: str
    good: bool | None
    sentences: tuple[str, ...]


def render(
    title: str, lead: str, parts: Iterable[tuple[str, str]], numbers: Mapping[str, Any], figures: Mapping[str, bytes]
) -> str:
    """`page.html.j2` with everything in it.

    Args:
        title: of the page.
        lead: name of the template of what stands before the first section.
        parts: heading and text of each section, a template too; one that says nothing is left out.
        numbers: what the templates may use.
        figures: PNG by name.
    """
    environment = Environment(
        loader=FunctionLoader(lambda name: files("odevit.report").joinpath(name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= FILTERS
    return environment.get_template("page.html.j2").render(
        numbers,
        title=title,
        lead=lead,
        parts=[(heading, environment.from_string(text)) for heading, text in parts],
        figures={name: b64encode(content).decode() for name, content in figures.items()},
    )


def number(value: float | None, form: str = ".3g") -> str:
    """Three digits, unless another form is given, and a true minus sign; a dash where there is nothing."""
    return "–" if value is None else f"{value:{form}}".replace("-", "−")


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}%"


def with_error(share: Mapping[str, float], form: str = "{} ± {:.1f}") -> str:
    """A share with its standard error, both in percent."""
    return form.format(percent(share["value"]), 100 * share["error"])


def share_of(share: Mapping[str, float]) -> str:
    """The same within a sentence."""
    return with_error(share, "{} (± {:.1f})")


def small_share(share: float) -> str:
    """A share in percent, down to a size at which it is nothing."""
    return "less than 0.001%" if share < 1e-5 else f"{100 * share:.2g}%" if share < 0.1 else f"{100 * share:.0f}%"


def of_norm(share: float | None) -> str:
    """A distance as a share, or as a multiple, of a state's norm."""
    if share is None:
        return "no finite distance"
    return f"{share:,.0f} times its norm" if share >= 10 else f"{small_share(share)} of its norm"


def words(name: str) -> str:
    return name.replace("_", " ")


FILTERS = {"number": number, "percent": percent, "with_error": with_error, "words": words, "count": "{:,}".format}
"""What templates write numbers with: `{{ images | count }}`."""
