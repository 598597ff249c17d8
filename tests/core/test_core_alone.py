"""model(x) runs in the core, which imports no other folder and stays small."""

import ast
import sys
from pathlib import Path

import pytest
import torch

import odevit
from odevit import OdeViTConfig, OdeViTForImageClassification

ROOT = Path(odevit.__file__).parent
CORE = sorted((ROOT / "core").glob("*.py"))
ALLOWED = ("odevit.core.", "odevit.errors", "odevit.registry", "odevit.tokens", "odevit.version")
MOST_LINES, MOST_FUNCTIONS, MOST_FILES = 2500, 45, 14


def functions_called(call):
    """(file, name, line) of every function of the package that is called, comprehensions and lambdas aside."""
    called = {}

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and not code.co_name.startswith("<") and Path(code.co_filename).is_relative_to(ROOT):
            called.setdefault((Path(code.co_filename).relative_to(ROOT), code.co_name, code.co_firstlineno))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return list(called)


@pytest.mark.parametrize("solver", ["euler", "midpoint", "heun", "rk4", "lie_trotter", "exponential_euler"])
@pytest.mark.parametrize("tokenizer", ["patch", "conv"])
def test_a_call_of_an_autonomous_model_stays_in_the_core_within_the_limits(solver, tokenizer):
    config = OdeViTConfig(
        hidden_size=16, num_attention_heads=2, image_size=8, patch_size=4, tokenizer=tokenizer, solver=solver, steps=2
    )
    model, pixels = OdeViTForImageClassification(config).eval(), torch.zeros(1, 3, 8, 8)
    with torch.no_grad():
        called = functions_called(lambda: model(pixels))
    files = {file for file, _, _ in called}
    assert {str(file) for file in files if file.parts[0] != "core"} <= {"tokens.py", "registry.py", "errors.py"}
    assert len(called) <= MOST_FUNCTIONS
    assert len(files) <= MOST_FILES


def test_the_core_has_at_most_2500_lines():
    assert sum(len(path.read_text().splitlines()) for path in CORE) <= MOST_LINES


def test_the_core_imports_nothing_else_of_the_library():
    outside = []
    for path in CORE:
        for node in ast.walk(ast.parse(path.read_text())):
            module = node.module if isinstance(node, ast.ImportFrom) else None
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [module or ""]
            outside += [
                f"{path.name}: {name}"
                for name in names
                if name.split(".")[0] == "odevit" and not f"{name}.".startswith(ALLOWED)
            ]
    assert not outside
