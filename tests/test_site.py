"""The documentation site builds without a warning, loads nothing from other hosts, and has no broken links."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("mkdocs", reason="the site needs odevit[docs]")
pytest.importorskip("material", reason="the site needs odevit[docs]")
pytest.importorskip("mkdocstrings", reason="the site needs odevit[docs]")

ROOT = Path(__file__).parents[1]
FOLDERS = sorted(path.parent.name for path in (ROOT / "src/odevit").glob("*/__init__.py"))
WITHOUT_FUNCTIONS = {"bundled", "conf"}
LOADED = {"link": "href", **dict.fromkeys(("script", "img", "iframe", "source", "video", "audio", "embed"), "src")}


class Read(HTMLParser):
    """The anchors of a page, where its links lead, and what a browser loads with it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors, self.links, self.loaded = {""}, [], []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.anchors |= {given[key] for key in ("id", "name") if given.get(key)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if tag in LOADED and given.get(LOADED[tag]):
            self.loaded.append(given[LOADED[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    # Not --quiet: then mkdocs does not count its warnings, and is never strict.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    settings = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    return {path: Read(path) for path in sorted(site.rglob("*.html"))}


def test_pages_and_styles_load_nothing_from_other_hosts(site, pages):
    outside = re.compile(r"(https?:)?//")
    assert [(str(path), url) for path, page in pages.items() for url in page.loaded if outside.match(url)] == []
    styles = {path: re.findall(r"(?:url\(|@import )[\"']?([^\"')]+)", path.read_text()) for path in site.rglob("*.css")}
    assert styles
    assert [(str(path), url) for path, urls in styles.items() for url in urls if outside.match(url)] == []


def test_files_that_pages_load_exist(pages):
    here = [(path, url) for path, page in pages.items() for url in page.loaded if not url.startswith(("data:", "/"))]
    assert here
    assert [(str(path), url) for path, url in here if not (path.parent / unquote(urlsplit(url).path)).exists()] == []


def test_links_and_anchors_exist(pages):
    lost = []
    for path, page in pages.items():
        for link in page.links:
            target = urlsplit(link)
            if target.scheme or path.name == "404.html":  # that one may be shown in any folder
                continue
            aim = (path.parent / unquote(target.path)).resolve() if target.path else path
            aim = aim / "index.html" if aim.is_dir() else aim
            known = pages[aim].anchors if aim in pages else {target.fragment}
            if not aim.exists() or unquote(target.fragment) not in known:
                lost.append(f"{path.name} -> {link}")
    assert lost == []


@pytest.mark.parametrize("page", sorted(path.stem for path in (ROOT / "docs").glob("*.md")))
def test_every_page_is_in_the_navigation(page, site, pages):
    """An entry is a line under nav: in mkdocs.yml."""
    assert f"{page}.html" in pages[site / "limits.html"].links


@pytest.mark.parametrize("folder", [folder for folder in FOLDERS if folder not in WITHOUT_FUNCTIONS])
def test_every_folder_has_an_api_page_with_public_names(folder, site, pages):
    page = site / "api" / f"{folder}.html"
    assert page.exists(), f"add {folder}: api/{folder}.md to nav: in mkdocs.yml"
    assert f"api/{folder}.html" in pages[site / "limits.html"].links
    assert any(anchor.startswith(f"odevit.{folder}.") for anchor in pages[page].anchors)


def test_api_pages_describe_public_names(site, pages):
    expected = {
        "core": ["odevit.core.solve.solve", "odevit.core.runge_kutta.RungeKutta", "odevit.core.solution.Solution.ok"],
        "solvers": ["odevit.solvers.adaptive.Dopri5"],
        "analysis": ["odevit.analysis.lyapunov.maximal_exponent", "odevit.analysis.contraction.Radius.median"],
        "surgery": ["odevit.surgery.surgery.get_ode_model"],
        "compare": ["odevit.compare.runner.compare"],
        "explorer": ["odevit.explorer.film.explore", "odevit.explorer.server.serve"],
        "cli": ["odevit.cli.recipes.train", "odevit.cli.commands.predict"],
    }
    missing = {folder: {*names} - pages[site / "api" / f"{folder}.html"].anchors for folder, names in expected.items()}
    assert not any(missing.values()), missing


def test_formulas_are_not_read_as_markup(site):
    """x* = step(x*) is not emphasis, and docstrings have no other markup than code."""
    for page in sorted((site / "api").glob("*.html")):
        assert "<em>" not in page.read_text(), page.name
    assert "f(x*) = 0" in (site / "api/systems.html").read_text()
