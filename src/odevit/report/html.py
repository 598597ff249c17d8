"""Small pieces of HTML: a picture inside the page, a table, a number in words."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from string import Template
from typing import Any

PAGE = Template("""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>$title</title>
<style>
  :root { --text: #222; --soft: #5a5a5a; --back: #fff; --line: #ddd; --card: #f6f7f9; }
  @media (prefers-color-scheme: dark) {
    :root { --text: #e8e8e8; --soft: #a9a9a9; --back: #16181c; --line: #3a3d44; --card: #20242b; }
  }
  body { max-width: 820px; margin: 1.5rem auto; padding: 0 1rem; font: 16px/1.55 system-ui, sans-serif;
         color: var(--text); background: var(--back); }
  h1 { font-size: 1.5rem; line-height: 1.25; }  h2 { font-size: 1.25rem; margin-top: 2.6rem; }
  h3 { font-size: 1.05rem; margin: 0 0 .3rem; }
  .verdict { background: var(--card); border-left: 5px solid var(--line); border-radius: 6px; padding: .8rem 1rem;
             margin: .8rem 0; }
  .verdict p { margin: .35rem 0; }
  .good { border-color: #009E73; }  .bad { border-color: #D55E00; }  .open { border-color: #56B4E9; }
  .answer { font-weight: 700; }
  details { margin: .6rem 0; }  summary { cursor: pointer; }
  figure { margin: 1.2rem 0; }  figcaption, .small { font-size: .88rem; color: var(--soft); }
  .picture { overflow-x: auto; background: #fff; border-radius: 6px; padding: 4px; }
  .picture img { display: block; width: 100%; min-width: 560px; }
  .table { overflow-x: auto; margin: 1rem 0 .4rem; }
  table { border-collapse: collapse; width: 100%; font-size: .92rem; }
  th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
  th:first-child, td:first-child { text-align: left; }
  dt { font-weight: 600; }  dd { margin: 0 0 .5rem; }
  code { overflow-wrap: anywhere; }
</style>
<h1>$title</h1>
$body
</html>
""")


def heading(text: str) -> str:
    return f"<h2>{escape(text)}</h2>"


def paragraph(text: str, small: bool = False) -> str:
    return f'<p class="small">{escape(text)}</p>' if small else f"<p>{escape(text)}</p>"


def picture(figures: Mapping[str, bytes], name: str, caption: str, missing: str = "") -> str:
    """A PNG with its caption, or why it is missing."""
    if name not in figures:
        return paragraph(missing, small=True) if missing else ""
    source = f"data:image/png;base64,{base64.b64encode(figures[name]).decode()}"
    return (
        f'<figure id="{name}"><div class="picture"><img alt="{escape(caption)}" src="{source}"></div>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    def line(cells: Iterable[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    return f'<div class="table"><table>{line(head, "th")}{"".join(line(row, "td") for row in rows)}</table></div>'


def folded(title: str, parts: Sequence[str]) -> str:
    """What is there for those who open it."""
    return f"<details><summary>{escape(title)}</summary>{''.join(parts)}</details>"


def number(value: float | None) -> str:
    """Three digits and a true minus sign; a dash where there is nothing."""
    return "–" if value is None else f"{value:.3g}".replace("-", "−")


def percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def with_error(share: Mapping[str, Any]) -> str:
    """A share with its standard error, both in percent."""
    return f"{percent(share['value'])} ± {100 * share['error']:.1f}"


def words(name: str) -> str:
    return name.replace("_", " ")
