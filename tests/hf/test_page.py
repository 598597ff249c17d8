"""docs/huggingface.md claims what the tests of this folder try, no more and no less."""

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = Path(__file__).parents[2] / "docs/huggingface.md"


def functions(path):
    nodes = ast.parse(path.read_text()).body
    return [node.name for node in nodes if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


def rows():
    """What the tables say: (claim, words, tests)."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [row for row in cells if row[0] != "what"]


def test_every_claim_has_a_test_and_every_test_a_claim():
    claimed = [name for row in rows() for name in re.findall(r"`(test_\w+)`", row[-1])]
    written = [name for path in HERE.glob("test_*.py") if path != Path(__file__) for name in functions(path)]
    assert sorted(claimed) == sorted(written)


def test_every_row_is_complete():
    assert len(rows()) > 20
    for row in rows():
        assert len(row) == 3, row
        assert all(row), row
        assert "`test_" in row[-1], row
