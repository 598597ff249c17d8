"""What the site shows besides docs/: an API page for each folder of the package, and every file that a page links to.

In the repository a page of docs/ links to ../records/README.md; on the site docs/ is the root, and records/ a folder in
it. Such files are taken along, and links to them rewritten. Links to whole folders become plain text.
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
"""Folders that hold files and no functions to call."""
PROJECT = ("CONTRIBUTING.md", "CHANGELOG.md", "records/README.md", "benchmarks/README.md")
"""Pages of the repository that the navigation has, whether or not a page of docs/ links to them."""
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
        if files.get_file_from_path(place_on_site(path)) is None:
            files.append(File.generated(config, place_on_site(path), abs_src_path=str(path)))
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
            return link.group()  # code that looks like a link, or a mistake, which mkdocs reports
        if aim.is_dir():
            return text
        return f"{mark}[{text}]({posixpath.relpath(place_on_site(aim), posixpath.dirname(here) or '.')}{anchor or ''})"

    return LINK.sub(rewritten, markdown)


def place_on_site(path: Path) -> str:
    """Where a file of the repository lies on the site."""
    return path.relative_to(ROOT / "docs" if path.is_relative_to(ROOT / "docs") else ROOT).as_posix()


def api_folders() -> list[Path]:
    """The folders of the package that have something to call."""
    return [path.parent for path in sorted(PACKAGE.glob("*/__init__.py")) if path.parent.name not in INTERNAL]


def api_page(folder: Path) -> str:
    """The public names of a folder under the files that they come from, to be filled in by mkdocstrings."""
    files = defaultdict(list)
    for module, name in public_names(folder):
        files[module].append(name)
    blocks = [f"# odevit.{folder.name}", about(folder / "__init__.py")]
    for module, names in files.items():
        path = ROOT / "src" / module.replace(".", "/")
        if path != folder:
            blocks += [f"## {path.name}", about(path.with_suffix(".py") if not path.is_dir() else path / "__init__.py")]
        blocks += [f"::: {module}.{name}\n    options: {{heading_level: 3}}" for name in names]
    shown = {f"odevit.{folder.name}", *files}
    rest = {module: path for module, path in modules(folder).items() if module not in shown and about(path)}
    if rest:
        blocks += ["## Other files", "What is less often needed is imported from its own file."]
        blocks += ["\n".join(f"- `{module}`: {about(path)}" for module, path in rest.items())]
    return "\n\n".join(blocks) + "\n"


def modules(folder: Path) -> dict[str, Path]:
    """The files of a folder by the names they are imported by; those that the folder keeps to itself begin with _."""
    paths = (path for path in sorted(folder.rglob("*.py")) if not path.name.startswith("_"))
    return {".".join(path.relative_to(ROOT / "src").with_suffix("").parts): path for path in paths}


def public_names(folder: Path) -> Iterator[tuple[str, str]]:
    """(module, name) of what a folder offers: `from module import name as name`, and what its __init__ defines.

    What another folder offers as well is described there.
    """
    others = tuple(f"odevit.{other.name}." for other in api_folders() if other != folder)
    tree = ast.parse((folder / "__init__.py").read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not f"{node.module}.".startswith(others):
            yield from ((str(node.module), alias.name) for alias in node.names if alias.asname == alias.name)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield f"odevit.{folder.name}", node.name


def about(path: Path) -> str:
    """What a file says of itself in its first line, letter by letter: formulas are no markup."""
    (line, *_) = (ast.get_docstring(ast.parse(path.read_text())) or "").splitlines() or [""]
    return re.sub(r"([*_\[\]\\])", r"\\\1", line).replace("<", "&lt;")
