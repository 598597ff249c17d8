"""measure -> draw -> tell -> verdicts: one topic of a report is one section, and a page is a list of sections."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

from matplotlib.figure import Figure
from torch import Tensor

from odevit.registry import Registry
from odevit.report.page import Block, Heading, Verdict, render
from odevit.report.progress import Progress
from odevit.report.study import Study

Numbers = Mapping[str, Any]
"""The content of analysis.json, or a part of it."""

DIGITS = 6
"""Significant digits that are written down; single precision has about seven."""


class Section(ABC):
    """One topic of a report.

    A new topic is one file in `odevit/report/` with a subclass and `@SECTIONS.register("name")` above it, and one line
    in `odevit/report/__init__.py` that imports it. Only `measure` sees the model; a page can be drawn and written again
    from the numbers alone.
    """

    title: ClassVar[str]
    """Its heading."""
    place: ClassVar[float]
    """Where it stands: sections are in the order of their places."""
    thresholds: ClassVar[tuple[str, ...]] = ()
    """The rules of its verdicts, in words."""

    @abstractmethod
    def measure(self, study: Study) -> dict[str, Any]:
        """The numbers by their keys in analysis.json; what is under the same key as another section's joins it."""

    def draw(self, numbers: Numbers, pictures: Tensor) -> dict[str, Figure | bytes]:
        """Figures by name, as far as the numbers allow; a PNG that is already there as it is.

        Args:
            numbers: of all sections.
            pictures: the first images of the sample [image, channel, height, width] in 0..1.
        """
        return {}

    @abstractmethod
    def tell(self, numbers: Numbers) -> list[Block]:
        """What stands below the heading; a section with nothing to tell is left out."""

    def verdicts(self, numbers: Numbers) -> list[Verdict]:
        """Its answers to the questions that a page begins with."""
        return []


SECTIONS: Registry[type[Section]] = Registry("section")


def all_sections() -> list[Section]:
    """Every registered section, in page order."""
    return [section() for section in sorted(SECTIONS.values(), key=lambda section: section.place)]


def measure_all(sections: Iterable[Section], study: Study, progress: Progress) -> dict[str, Any]:
    """The numbers of all sections together, as JSON can hold them."""
    numbers: dict[str, Any] = {}
    for section in sections:
        with progress.stage(section.title):
            for key, value in plain(section.measure(study)).items():
                there = numbers.get(key)
                numbers[key] = {**there, **value} if isinstance(there, dict) and isinstance(value, dict) else value
    return numbers


def write_page(
    path: Path,
    title: str,
    lead: Sequence[Block],
    sections: Sequence[Section],
    numbers: Numbers,
    pictures: Tensor,
    figures: Path | None = None,
) -> Path:
    """Draw every figure that the numbers allow, and write the page with all of them inside.

    Args:
        path: of the page, in a folder that exists.
        title: of the page.
        lead: what stands before the first section.
        sections: in page order.
        numbers: of all sections.
        pictures: the first images of the sample, see `Section.draw`.
        figures: a folder in which to save the figures as well, as NAME.png.
    """
    drawn: dict[str, bytes] = {}
    for section in sections:
        drawn |= {name: _png(figure) for name, figure in section.draw(numbers, pictures).items()}
    if figures is not None:
        figures.mkdir(parents=True, exist_ok=True)
        for name, content in drawn.items():
            (figures / f"{name}.png").write_bytes(content)
    blocks = list(lead)
    for section in sections:
        told = section.tell(numbers)
        blocks += [Heading(section.title), *told] if told else []
    path.write_text(render(title, blocks, drawn), encoding="utf-8")
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


def _png(figure: Figure | bytes) -> bytes:
    if isinstance(figure, bytes):
        return figure
    figure.savefig(buffer := BytesIO(), format="png")
    return buffer.getvalue()
