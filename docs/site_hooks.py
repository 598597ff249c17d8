"""Add to the site what lies outside docs/: an API page for each folder of the package, and every file that is linked.

In the repository a page of docs/ links to ../records/README.md. On the site docs/ is the root, and records/ a folder in
it. So linked files are copied and links to them rewritten. Links to folders become plain text.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src/odevit"
INTERNAL = {"bundled", "conf"}
"""Folders without functions."""
PROJECT = ("CONTRIBUTING.md", "CHANGELOG.md", "records/README.md", "benchmarks/README.md")
"""Pages outside docs/ that are in the navigation."""
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)#\s]+)(#[^)]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    for folder in api_folders():
        files.append(File.generated(config, f"api/{folder.name}.md", content=api_page(folder)))
    waiting = [ROOT / "docs" / file.src_uri for file in files.documentation_pages() if file.abs_src_path]
    waiting += [ROOT / page for page in PROJECT]
    known = set()
    while waiting:
        path = waiting.pop()
        if path in known or not path.is_file():
            continue
        known.add(path)
        if files.get_file_from_path(site_path(path)) is None:
            files.append(File.generated(config, site_path(path), abs_src_path=str(path)))
        if path.suffix == ".md":
            waiting += [(path.parent / target).resolve() for _, _, target, _ in LINK.findall(path.read_text())]
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    here = page.file.src_uri
    path = ROOT / "docs" / here if (ROOT / "docs" / here).exists() else ROOT / here

    def rewritten(link: re.Match[str]) -> str:
        mark, text, target, anchor = link.groups()
        aim = (path.parent / target).resolve()
        if not aim.exists():
            return link.group()  # code that looks like a link, or a broken link, which mkdocs reports
        if aim.is_dir():
            return text
        return f"{mark}[{text}]({posixpath.relpath(site_path(aim), posixpath.dirname(here) or '.')}{anchor or ''})"

    return LINK.sub(rewritten, markdown)


def site_path(path: Path) -> str:
    """The path on the site of a file of the repository."""
    return path.relative_to(ROOT / "docs" if path.is_relative_to(ROOT / "docs") else ROOT).as_posix()


def api_folders() -> list[Path]:
    """The folders of the package with public functions or classes."""
    return [path.parent for path in sorted(PACKAGE.glob("*/__init__.py")) if path.parent.name not in INTERNAL]


def api_page(folder: Path) -> str:
    """The public names of a folder, grouped by the file that defines them. mkdocstrings fills in each `:::`."""
    names_by_module = defaultdict(list)
    for module, name in public_names(folder):
        names_by_module[module].append(name)
    blocks = [f"# odevit.{folder.name}", first_line(folder / "__init__.py")]
    for module, names in names_by_module.items():
        path = ROOT / "src" / module.replace(".", "/")
        if path != folder:
            file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            blocks += [f"## {path.name}", first_line(file)]
        blocks += [f"::: {module}.{name}\n    options: {{heading_level: 3}}" for name in names]
    return "\n\n".join(blocks) + "\n"


def public_names(folder: Path) -> Iterator[tuple[str, str]]:
    """(module, name) of each public name of a folder.

    Public is what the package or one of its folders imports as `name as name`, what the folder's __init__ defines, and
    what the examples of CONTRIBUTING.md import. A name is described in the folder that defines it.
    """
    inits = [folder / "__init__.py", PACKAGE / "__init__.py", *sorted(PACKAGE.glob("*/__init__.py"))]
    found = dict.fromkeys([pair for init in inits for pair in reexported(init)] + [*in_examples()])
    yield from ((module, name) for module, name in found if f"{module}.".startswith(f"odevit.{folder.name}."))
    for node in ast.parse((folder / "__init__.py").read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield f"odevit.{folder.name}", node.name


def reexported(file: Path) -> Iterator[tuple[str, str]]:
    """(module, name) of each `from module import name as name`."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield from ((str(node.module), alias.name) for alias in node.names if alias.asname == alias.name)


def in_examples() -> Iterator[tuple[str, str]]:
    """(module, name) of what the examples of CONTRIBUTING.md import from modules that exist."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    for module, names in re.findall(r"^from (odevit\.[\w.]+) import ([\w, ]+)$", text, flags=re.M):
        if (ROOT / "src" / f"{module.replace('.', '/')}.py").exists():
            yield from ((module, name) for name in names.split(", ") if not name.isupper())


def first_line(path: Path) -> str:
    """The first line of a file's docstring, escaped, so that formulas are not read as markup."""
    (line, *_) = (ast.get_docstring(ast.parse(path.read_text())) or "").splitlines() or [""]
    return re.sub(r"([*_\[\]\\])", r"\\\1", line).replace("<", "&lt;")
