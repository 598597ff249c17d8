"""A table that scrolls where it is wider than the page, and how numbers and names stand in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    def line(cells: Iterable[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    return f'<div class="table"><table>{line(head, "th")}{"".join(line(row, "td") for row in rows)}</table></div>'


def number(value: float | None) -> str:
    """Three digits and a true minus sign; a dash where there is nothing."""
    return "–" if value is None else f"{value:.3g}".replace("-", "−")


def percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def with_error(share: Mapping[str, float]) -> str:
    """A share with its standard error, both in percent."""
    return f"{percent(share['value'])} ± {100 * share['error']:.1f}"


def words(name: str) -> str:
    return name.replace("_", " ")
