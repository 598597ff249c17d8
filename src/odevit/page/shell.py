"""A page and its text, in one style for all: light and dark, on a phone and on a desk."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from string import Template

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
  details { margin: .6rem 0; }  summary { cursor: pointer; }  code { overflow-wrap: anywhere; }
  figure { margin: 1.2rem 0; }  figcaption, .small { font-size: .88rem; color: var(--soft); }
  .picture { overflow-x: auto; background: #fff; border-radius: 6px; padding: 4px; margin-bottom: .4rem; }
  .picture img { display: block; width: 100%; min-width: 560px; }
  .table { overflow-x: auto; margin: 1rem 0 .4rem; }
  table { border-collapse: collapse; width: 100%; font-size: .92rem; }
  th, td { padding: .3rem .4rem; text-align: right; border-bottom: 1px solid var(--line); }
  th:first-child, td:first-child { text-align: left; padding-left: 0; }
  th { vertical-align: bottom; }  td { white-space: nowrap; }  dt { font-weight: 600; }  dd { margin: 0 0 .5rem; }
</style>
<h1>$title</h1>
$body
</html>
""")


def whole_page(title: str, parts: Iterable[str]) -> str:
    """The title is text; the parts are HTML."""
    return PAGE.substitute(title=escape(title), body="\n".join(parts))


def heading(text: str) -> str:
    return f"<h2>{escape(text)}</h2>"


def paragraph(text: str, small: bool = False) -> str:
    return f'<p class="small">{escape(text)}</p>' if small else f"<p>{escape(text)}</p>"


def folded(title: str, parts: Iterable[str]) -> str:
    """What is there for those who open it."""
    return f"<details><summary>{escape(title)}</summary>{''.join(parts)}</details>"
