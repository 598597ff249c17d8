"""measure -> draw -> write -> judge: one topic of a report is one section, and a page is a list of sections."""

from __future__ import annotations

import math
import sys
import time
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, is_dataclass
from importlib import import_module
from io import BytesIO
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, ClassVar

from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure
from rich.console import Console
from torch import Tensor

from odevit.registry import Registry
from odevit.report.page import FILTERS
from odevit.report.study import Study

Numbers = Mapping[str, Any]
"""The content of analysis.json, or a part of it."""
Figures = dict[str, Figure]
"""By name."""
DIGITS = 6
"""Significant digits in analysis.json; single precision has about seven."""
TOO_FEW = "too few images to say"
"""The answer where the measured share meets a threshold and only its interval does not."""


@dataclass(frozen=True)
class Verdict:
    """A question, its answer, and the sentences with the numbers behind it.

    The answer is `yes`, `no`, `partly`, `unknown`, `TOO_FEW` or a short phrase; `good` is True for the desired answer,
    False for the undesired one, and None where neither applies.
    """

    question: str
    answer: str
    good: bool | None
    sentences: tuple[str, ...]


class Section:
    """One topic of a report.

    A new topic is one file in `odevit/report/` with a subclass and `@SECTIONS.register("name")` above it. Only
    `measure` sees the model: a page can be drawn and written again from the numbers alone.
    """

    title: ClassVar[str]
    """Its heading."""
    order: ClassVar[float]
    """Position on the page: sections are sorted by this number."""
    text: ClassVar[str]
    """What follows the heading: a template of the numbers of all sections, with the macros of page.html.j2."""
    thresholds: ClassVar[tuple[str, ...]] = ()
    """The rules of its verdicts, as sentences."""

    def measure(self, study: Study) -> dict[str, Any]:
        """The numbers by their keys in analysis.json; sections that share a key each add to its dictionary."""
        return {}

    def draw(self, numbers: Numbers, pictures: Tensor) -> Figures:
        """Figures of the numbers of all sections, and of the first images [image, channel, height, width] in 0..1."""
        return {}

    def judge(self, numbers: Numbers) -> list[Verdict]:
        """Its answers to questions at the top of the page."""
        return []


SECTIONS: Registry[type[Section]] = Registry("section")


@SECTIONS.register("provenance")
class Provenance(Section):
    """The end of a page: everything needed to make it again."""

    title = "How this was made"
    order = 100
    text = """
{% call small() %}
<code>{{ command }}</code><br>{{ device }}, {% if training is defined %}trained in {{ training | number(".0f") }} s,
{% endif %}this page made in {{ seconds.total | number(".0f") }} s
({{ seconds.processor | number(".0f") }} s of processor time), seed {{ seed }}<br>
{% for name, version in versions.items() %}{{ name }} {{ version }}{{ "" if loop.last else ", " }}{% endfor %}
{% if sizes is defined %}<br>Every number on this page is in analysis.json beside it.{% endif %}
{% endcall %}
"""

    def measure(self, study: Study) -> dict[str, Any]:
        return {"seed": study.seed}


def all_sections() -> list[Section]:
    """Every section of this package, and every other that is registered, in page order."""
    for module in iter_modules([str(Path(__file__).parent)]):
        import_module(f"odevit.report.{module.name}")
    return [section() for section in sorted(SECTIONS.values(), key=lambda section: section.order)]


class Progress:
    """One line per stage on standard error, with its seconds; on a terminal it spins meanwhile."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.seconds: dict[str, float] = {}
        self.started, self.processor = time.perf_counter(), time.process_time()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Print the name and the seconds of a stage."""
        began = time.perf_counter()
        with self.console.status(f"{name} ...") if sys.stderr.isatty() else nullcontext():
            yield
        self.seconds[name] = time.perf_counter() - began
        self.console.print(f"{name}: {self.seconds[name]:.1f} s")

    def to_dict(self) -> dict[str, Any]:
        """Seconds of every stage, of all of them, and of the processor."""
        total, processor = time.perf_counter() - self.started, time.process_time() - self.processor
        return {"stages": self.seconds, "total": total, "processor": processor}


def measure_all(sections: Iterable[Section], study: Study, progress: Progress) -> dict[str, Any]:
    """The numbers of all sections together, as JSON can hold them."""
    numbers: dict[str, Any] = {}
    for section in sections:
        with progress.stage(section.title):
            for key, value in to_builtins(section.measure(study)).items():
                numbers[key] = {**numbers[key], **value} if isinstance(numbers.get(key), dict) else value
    return numbers


def draw_all(sections: Iterable[Section], numbers: Numbers, pictures: Tensor) -> dict[str, bytes]:
    """Every figure of the sections, as PNG."""
    drawn: dict[str, bytes] = {}
    for section in sections:
        for name, figure in section.draw(numbers, pictures).items():
            figure.savefig(buffer := BytesIO(), format="png")
            drawn[name] = buffer.getvalue()
    return drawn


def write_page(
    path: Path, title: str, lead: str, sections: Iterable[Section], numbers: Numbers, figures: Mapping[str, bytes]
) -> Path:
    """Write `page.html.j2` with everything embedded: one file without links to others.

    Args:
        lead: the name of the template that precedes the first section.
        sections: their texts are templates too; one with an empty text is left out.
        numbers, figures: what the templates may use, and PNG by name.
    """
    environment = Environment(
        loader=PackageLoader("odevit.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= FILTERS
    page = environment.get_template("page.html.j2").render(
        numbers,
        title=title,
        lead=lead,
        parts=[(section.title, environment.from_string(section.text)) for section in sections],
        figures={name: b64encode(content).decode() for name, content in figures.items()},
    )
    path.write_text(page, encoding="utf-8")
    return path


def to_builtins(value: Any) -> Any:
    """The same as dictionaries, lists and numbers for JSON; NaN and infinity become None.

    An object is converted by its `to_dict()`, or by the fields of its dataclass.
    """
    if isinstance(value, Tensor):
        return to_builtins(value.detach().cpu().tolist())
    if isinstance(value, Mapping):
        return {str(key): to_builtins(entry) for key, entry in value.items()}
    if hasattr(value, "to_dict"):
        return to_builtins(value.to_dict())
    if is_dataclass(value) and not isinstance(value, type):
        return to_builtins(asdict(value))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [to_builtins(entry) for entry in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return value
