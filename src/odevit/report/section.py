"""measure -> draw -> tell -> judge: one topic of a report is one section, and a page is a list of sections."""

from __future__ import annotations

import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, is_dataclass
from importlib import import_module
from io import BytesIO
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, ClassVar

from matplotlib.figure import Figure
from rich.console import Console
from torch import Tensor

from odevit.registry import Registry
from odevit.report.page import Verdict, render
from odevit.report.study import Study

Numbers = Mapping[str, Any]
"""The content of analysis.json, or a part of it."""
Figures = dict[str, Figure | bytes]
"""By name; a PNG that is already there as it is."""
DIGITS = 6
"""Significant digits that are written down; single precision has about seven."""


class Section(ABC):
    """One topic of a report.

    A new topic is one file in `odevit/report/` with a subclass and `@SECTIONS.register("name")` above it; nothing else
    is touched. Only `measure` sees the model: a page can be drawn and written again from the numbers alone.
    """

    title: ClassVar[str]
    """Its heading."""
    place: ClassVar[float]
    """Sections stand in the order of their places."""
    text: ClassVar[str]
    """What stands below the heading: a template of the numbers of all sections, with the macros of page.html.j2."""
    thresholds: ClassVar[tuple[str, ...]] = ()
    """The rules of its verdicts, in words."""

    @abstractmethod
    def measure(self, study: Study) -> dict[str, Any]:
        """The numbers by their keys in analysis.json; sections that share a key each add to what is under it."""

    def draw(self, numbers: Numbers, pictures: Tensor) -> Figures:
        """What the numbers of all sections, and the first images [image, channel, height, width] in 0..1, allow."""
        return {}

    def judge(self, numbers: Numbers) -> list[Verdict]:
        """Its answers to the questions that a page begins with."""
        return []


SECTIONS: Registry[type[Section]] = Registry("section")


def all_sections() -> list[Section]:
    """Every section of this package, and every other that is registered, in page order."""
    for module in iter_modules([str(Path(__file__).parent)]):
        import_module(f"odevit.report.{module.name}")
    return [section() for section in sorted(SECTIONS.values(), key=lambda section: section.place)]


class Progress:
    """One line per stage on standard error, with its seconds; on a terminal it spins while the stage lasts."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.seconds: dict[str, float] = {}
        self.started, self.processor = time.perf_counter(), time.process_time()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Say what begins, and how long it took."""
        began = time.perf_counter()
        with self.console.status(f"{name} ...") if sys.stderr.isatty() else nullcontext():
            yield
        self.seconds[name] = time.perf_counter() - began
        self.console.print(f"{name}: {self.seconds[name]:.1f} s")

    def numbers(self) -> dict[str, Any]:
        """Seconds of every stage, of all of them, and of the processor."""
        total, processor = time.perf_counter() - self.started, time.process_time() - self.processor
        return {"stages": self.seconds, "total": total, "processor": processor}


def measure_all(sections: Iterable[Section], study: Study, progress: Progress) -> dict[str, Any]:
    """The numbers of all sections together, as JSON can hold them."""
    numbers: dict[str, Any] = {}
    for section in sections:
        with progress.stage(section.title):
            for key, value in plain(section.measure(study)).items():
                numbers[key] = {**numbers[key], **value} if isinstance(numbers.get(key), dict) else value
    return numbers


def draw_all(sections: Iterable[Section], numbers: Numbers, pictures: Tensor) -> dict[str, bytes]:
    """Every figure that the numbers allow, as PNG."""
    drawn: dict[str, bytes] = {}
    for section in sections:
        for name, figure in section.draw(numbers, pictures).items():
            if isinstance(figure, Figure):
                figure.savefig(buffer := BytesIO(), format="png")
            drawn[name] = buffer.getvalue() if isinstance(figure, Figure) else figure
    return drawn


def write_page(
    path: Path, title: str, lead: str, sections: Iterable[Section], numbers: Numbers, figures: Mapping[str, bytes]
) -> Path:
    """Write the page of some sections; `lead` names the template of what stands before the first."""
    parts = [(section.title, section.text) for section in sections]
    path.write_text(render(title, lead, parts, numbers, figures), encoding="utf-8")
    return path


def plain(value: Any) -> Any:
    """The same as dictionaries, lists and numbers; what is not finite becomes None, for JSON has no word for it."""
    if isinstance(value, Tensor):
        return plain(value.detach().cpu().tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(entry) for entry in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return value
