"""The tables of docs/huggingface.md list the tests of what works with transformers, all of them and no others."""

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = Path(__file__).parents[2] / "docs/huggingface.md"
FILES = [HERE / f"test_{name}.py" for name in ("backbone", "common", "refusals", "use")]


def functions(path):
    nodes = ast.parse(path.read_text()).body
    return [node.name for node in nodes if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


def rows():
    """What the tables say: (claim, words, tests)."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [row for row in cells if row[0] != "what"]


def test_the_tables_name_the_tests_that_exist():
    claimed = [name for row in rows() for name in re.findall(r"`(test_\w+)`", row[-1])]
    written = [name for path in FILES for name in functions(path)]
    assert sorted(claimed) == sorted(written)


def test_rows_have_a_claim_its_words_and_a_test():
    assert len(rows()) > 20
    for row in rows():
        assert len(row) == 3, row
        assert all(row), row
        assert "`test_" in row[-1], row
