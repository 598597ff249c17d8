"""Imports point one way: a folder imports only from folders below it."""

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((SOURCE / "odevit").rglob("*.py"))
}

ORDER = [
    {"errors", "registry", "hub", "tokens", "version", "plotting"},
    {"core"},
    {"deprecated"},
    {"attention", "solvers", "time_varying"},
    {"systems"},
    {"bundled"},
    {"hf"},
    {"surgery"},
    {"loading"},
    {"objectives", "data"},
    {"analysis"},
    {"train"},
    {"distill"},
    {"report"},
    {"explorer"},
    {"compare"},
    {"cli"},
    {"odevit"},  # the package itself, which offers what is below
]
"""A folder imports only from the lines above its own; the modules of the first line may import each other."""
RANK = {part: number for number, parts in enumerate(ORDER) for part in parts}


def part_of(module):
    return "odevit" if module == "odevit" else module.split(".")[1]


def imports():
    """(importing module, line, imported module) for every import of ours, those inside functions included."""
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                # `from odevit.a import b`: the module odevit.a.b if there is one, otherwise a name in odevit.a
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                names = [name if name in MODULES else str(node.module) for name in names]
            else:
                continue
            yield from ((module, node.lineno, name) for name in names if name.split(".")[0] == "odevit")


def test_every_folder_has_a_place_in_the_order():
    assert {part_of(module) for module in MODULES} - {"conf"} == set(RANK)


def test_imports_point_down():
    """From one folder to another strictly down, so that there is no cycle between folders either."""
    upward = []
    for module, line, name in imports():
        here, there = part_of(module), part_of(name)
        if name in MODULES and here != there and RANK[there] >= max(RANK[here], 1):
            upward.append(f"{module}, line {line}, imports {name}")
    assert not upward


def test_what_is_imported_exists():
    assert not [f"{module}, line {line}: {name}" for module, line, name in imports() if name not in MODULES]
