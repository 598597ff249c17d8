"""What the README and the docs say is true today."""

import re
from pathlib import Path

import pytest
from benchmarks.readme import PAGES, filled

ROOT = Path(__file__).parents[1]
SNIPPETS = [
    pytest.param(code, id=f"{path.name}-{number}")
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.S))
]


@pytest.mark.parametrize("code", SNIPPETS)
def test_snippets_run(code):
    exec(compile(code, "snippet", "exec"), {})


@pytest.mark.parametrize("page", PAGES)
def test_the_tables_are_what_the_records_say(page):
    text = (ROOT / page).read_text()
    assert "<!--" in text
    assert filled(text) == text


def test_links_lead_somewhere():
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"
