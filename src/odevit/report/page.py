"""paragraph, table, picture, verdict: what a page consists of, and how numbers are written in it."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from jinja2 import Environment, StrictUndefined


class Block:
    """A piece of a page; `page.html.j2` knows each by its kind. All text is escaped there."""

    @property
    def kind(self) -> str:
        return type(self).__name__.lower()


@dataclass(frozen=True)
class Heading(Block):
    """The title of a section (level 2), or of a part of one (level 3)."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Text(Block):
    """A paragraph; small print where it explains what is above it."""

    text: str
    small: bool = False


@dataclass(frozen=True)
class Lines(Block):
    """A command and what belongs to it, line by line, in small print."""

    code: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Table(Block):
    """A head and rows of cells. It scrolls where it is wider than the page."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Picture(Block):
    """The figure of that name with its caption, which a screen reader reads too; or why there is none."""

    name: str
    caption: str
    missing: str = ""


@dataclass(frozen=True)
class Details(Block):
    """Folded away until it is opened: paragraphs, or terms with their meanings."""

    title: str
    content: tuple[str, ...] | Mapping[str, str]


@dataclass(frozen=True)
class Verdict(Block):
    """A question, its answer, and the numbers behind it.

    Args:
        question: in plain words.
        answer: `yes`, `no`, `partly` or `unknown`, or a short phrase.
        good: whether that is what one hopes for; None where there is nothing to hope for.
        sentences: with the numbers.
    """

    question: str
    answer: str
    good: bool | None
    sentences: tuple[str, ...]

    @property
    def line(self) -> str:
        return f"{self.question} {self.answer[:1].upper()}{self.answer[1:]}."


def render(title: str, blocks: Sequence[Block], figures: Mapping[str, bytes]) -> str:
    """A page of HTML that needs nothing beside it; the figures are PNG by name."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(files("odevit.report").joinpath("page.html.j2").read_text(encoding="utf-8"))
    encoded = {name: b64encode(content).decode() for name, content in figures.items()}
    return template.render(title=title, blocks=blocks, figures=encoded)


def number(value: float | None, form: str = ".3g") -> str:
    """Three digits, unless another form is given, and a true minus sign; a dash where there is nothing."""
    return "–" if value is None else f"{value:{form}}".replace("-", "−")


def mean_of(value: float | None, error: float | None) -> str:
    """A mean with its standard error."""
    return f"{number(value)} ± {number(error)}"


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
    if share < 1e-5:
        return "less than 0.001%"
    return f"{100 * share:.2g}%" if share < 0.1 else f"{100 * share:.0f}%"


def of_norm(share: float | None) -> str:
    """A distance as a share, or as a multiple, of a state's norm."""
    if share is None:
        return "no finite distance"
    return f"{share:,.0f} times its norm" if share >= 10 else f"{small_share(share)} of its norm"


def words(name: str) -> str:
    return name.replace("_", " ")
