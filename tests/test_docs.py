"""What the README and the docs say is true today."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SNIPPETS = [
    pytest.param(code, id=f"{path.name}-{number}")
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.S))
]


@pytest.mark.parametrize("code", SNIPPETS)
def test_snippets_run(code):
    exec(compile(code, "snippet", "exec"), {})


def test_the_tables_of_the_readme_are_what_the_records_say():
    spec = importlib.util.spec_from_file_location("readme", ROOT / "benchmarks/readme.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = (ROOT / "README.md").read_text()
    assert module.filled(text) == text


def test_links_lead_somewhere():
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"
