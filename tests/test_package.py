"""Importing the package, its wheel, and an installation without anything else."""

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Importing odevit must open no network connection, and must not need undeclared packages.
GUARDED_IMPORT = """
import socket, sys

def refuse(*args, **kwargs):
    raise RuntimeError("importing odevit opened a socket")

for name in ("torchvision", "torchdiffeq", "onnx", "onnxscript", "datasets", "pyarrow", "gradio"):
    sys.modules[name] = None
import torch, transformers
from transformers import AutoConfig, AutoModel, AutoModelForImageClassification, PreTrainedModel, ViTImageProcessorPil
socket.socket.connect = refuse
before = set(sys.modules)
import odevit
print(sorted({name.split(".")[0] for name in set(sys.modules) - before} - {"transformers"}))
print([name for name in odevit.deprecated.MODULES if f"odevit.{name}" in sys.modules])
"""


def python(code, executable=sys.executable, **kwargs):
    result = subprocess.run([str(executable), "-c", code], capture_output=True, text=True, check=False, **kwargs)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_import_loads_only_odevit_and_opens_no_network():
    """Beyond torch and transformers: no matplotlib, no Hydra, no datasets, no deprecated modules."""
    assert python(GUARDED_IMPORT).splitlines() == ["['odevit']", "[]"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    (built,) = out.glob("*.whl")
    return built


def test_wheel_contains_package_licence_types_and_data(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert "odevit/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    modules = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src/odevit").rglob("*.py")}
    assert modules <= set(names)
    assert {"odevit_command.py", "odevit/cli/help.json", "odevit/conf/experiment/fast/cifar10.yaml"} <= set(names)
    assert "odevit/bundled/cifar10/model.safetensors" in names
    assert "odevit/explorer/front/explorer.js" in names
    assert not any(name.startswith("tests/") for name in names)


def test_wheel_installs_into_an_empty_environment_and_runs(wheel, tmp_path, monkeypatch):
    """Dependencies are added by path, so that the test needs no network."""
    monkeypatch.delenv("PYTHONPATH", raising=False)  # it may lead to the sources
    venv.create(tmp_path / "venv", with_pip=True)
    executable = tmp_path / "venv/bin/python"
    assert "none" in python(
        "import importlib.util as u; print('none' if u.find_spec('odevit') is None else '')", executable
    )
    install = [str(executable), "-m", "pip", "install", "-q", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    shown = subprocess.run(
        [tmp_path / "venv/bin/odevit", "train", "--help"], capture_output=True, text=True, check=True
    )
    assert shown.stdout.startswith("odevit train"), "help needs no dependency"
    site = next(Path(path) for path in sys.path if path.endswith("site-packages"))
    code = f"""
import sys
sys.path.append({str(site)!r})
import odevit, torch
assert odevit.__file__.startswith({str(tmp_path)!r}), odevit.__file__
model = odevit.OdeViTForImageClassification(odevit.OdeViTConfig.preset("digits")).eval()
print(model(torch.zeros(1, 3, 8, 8)).trajectory.status)
"""
    assert python(code, executable, cwd=tmp_path).startswith("Reached t = 4")


def test_sources_and_docs_contain_no_machine_paths_or_registry_hosts():
    words = ["/ho" + "me/", "/ro" + "ot/", "/wo" + "rk/", "pypi" + ".org", "files.python" + "hosted"]
    for path in [
        *ROOT.glob("src/**/*.py"),
        *ROOT.glob("src/**/*.yaml"),
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("records/*.md"),
    ]:
        text = path.read_text()
        assert not [word for word in words if word in text], path
