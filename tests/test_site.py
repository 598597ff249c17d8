"""The documentation builds without a warning, asks nobody for anything, and leads nowhere that does not exist."""

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


def test_nothing_is_loaded_from_outside(site, pages):
    outside = re.compile(r"(https?:)?//")
    assert [(str(path), url) for path, page in pages.items() for url in page.loaded if outside.match(url)] == []
    styles = {path: re.findall(r"(?:url\(|@import )[\"']?([^\"')]+)", path.read_text()) for path in site.rglob("*.css")}
    assert styles
    assert [(str(path), url) for path, urls in styles.items() for url in urls if outside.match(url)] == []


def test_what_is_loaded_is_there(pages):
    here = [(path, url) for path, page in pages.items() for url in page.loaded if not url.startswith(("data:", "/"))]
    assert here
    assert [(str(path), url) for path, url in here if not (path.parent / unquote(urlsplit(url).path)).exists()] == []


def test_links_and_anchors_lead_somewhere(pages):
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
    """From any page; an entry is a line under nav: in mkdocs.yml."""
    assert f"{page}.html" in pages[site / "limits.html"].links


@pytest.mark.parametrize("folder", [folder for folder in FOLDERS if folder not in WITHOUT_FUNCTIONS])
def test_every_folder_has_a_page_with_its_names(folder, site, pages):
    page = site / "api" / f"{folder}.html"
    assert page.exists(), f"add {folder}: api/{folder}.md to nav: in mkdocs.yml"
    assert f"api/{folder}.html" in pages[site / "limits.html"].links
    assert any(anchor.startswith(f"odevit.{folder}.") for anchor in pages[page].anchors)


def test_public_names_are_described_where_they_live(site, pages):
    expected = {
        "solver": ["odevit.core.solve.solve", "odevit.core.runge_kutta.RK4", "odevit.core.solution.Solution.ok"],
        "analysis": ["odevit.analysis.lyapunov.maximal_exponent", "odevit.analysis.contraction.Radius.median"],
        "model": ["odevit.surgery.surgery.get_ode_model", "odevit.tokens.TokenLayout"],
        "cli": ["odevit.cli.recipes.train", "odevit.cli.answering.predict"],
        "film": ["odevit.explorer.film.explore"],
    }
    missing = {folder: {*names} - pages[site / "api" / f"{folder}.html"].anchors for folder, names in expected.items()}
    assert not any(missing.values()), missing


def test_formulas_are_shown_as_they_were_written(site):
    """x* = step(x*) is no emphasis, and a docstring has no other markup than code."""
    for page in sorted((site / "api").glob("*.html")):
        assert "<em>" not in page.read_text(), page.name
    assert "f(x*) = 0" in (site / "api/depth.html").read_text()
