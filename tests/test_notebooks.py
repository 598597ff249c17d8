"""The notebooks run from top to bottom, and are kept without what they print."""

import os
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="the notebooks need odevit[dev]")
nbclient = pytest.importorskip("nbclient", reason="the notebooks need odevit[dev]")
pytest.importorskip("ipykernel", reason="the notebooks need odevit[dev]")

EXAMPLES = Path(__file__).parents[1] / "examples"
FIGURES = {"use": 3, "distil": 2, "analyse": 5}
"""How many pictures each of them draws; a film counts by itself."""


@pytest.fixture(scope="module")
def kernel_settings():
    """One thread and no network; compiled modules are kept, since three kernels import the same ones."""
    settings = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    settings.pop("PYTHONDONTWRITEBYTECODE", None)
    return settings


def test_there_is_a_test_for_every_notebook():
    assert {path.stem for path in EXAMPLES.glob("*.ipynb")} == set(FIGURES)


@pytest.mark.parametrize("name", FIGURES)
def test_outputs_are_stripped(name):
    notebook = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.id for cell in code if cell.outputs or cell.execution_count] == []
    assert set(notebook.metadata) <= {"kernelspec", "language_info"}


@pytest.mark.parametrize("name", FIGURES)
def test_it_runs_from_top_to_bottom(name, kernel_settings, tmp_path):
    notebook = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(EXAMPLES)}}
    )
    client.execute(env=kernel_settings | {"TMPDIR": str(tmp_path)})
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == FIGURES[name]
    assert name != "use" or sum("image/gif" in output.get("data", {}) for output in outputs) == 1
