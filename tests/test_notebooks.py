"""The notebooks run from top to bottom, and are stored without outputs."""

import os
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="the notebooks need odevit[dev]")
nbclient = pytest.importorskip("nbclient", reason="the notebooks need odevit[dev]")
pytest.importorskip("ipykernel", reason="the notebooks need odevit[dev]")

EXAMPLES = Path(__file__).parents[1] / "examples"
FIGURES = {"use": 3, "distil": 2, "analyse": 5}
"""The number of figures in each, films aside."""


@pytest.fixture(scope="module")
def kernel_settings():
    """One thread and no network."""
    return os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def test_figures_lists_every_notebook():
    assert {path.stem for path in EXAMPLES.glob("*.ipynb")} == set(FIGURES)


@pytest.mark.parametrize("name", FIGURES)
def test_notebook_is_stored_without_outputs(name):
    notebook = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.id for cell in code if cell.outputs or cell.execution_count] == []
    assert set(notebook.metadata) <= {"kernelspec", "language_info"}


def test_notebooks_run_and_draw_their_figures(kernel_settings, tmp_path):
    """One after the other in one kernel, which is reset in between, because importing torch takes seconds."""
    parts = {name: nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4).cells for name in FIGURES}
    cells = [cell for part in parts.values() for cell in (nbformat.v4.new_code_cell("%reset -f"), *part)]
    together = nbformat.v4.new_notebook(cells=cells)
    client = nbclient.NotebookClient(
        together, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(EXAMPLES)}}
    )
    client.execute(env=kernel_settings | {"TMPDIR": str(tmp_path)})
    shown = {
        name: [kind for cell in cells for output in cell.get("outputs", ()) for kind in output.get("data", {})]
        for name, cells in parts.items()
    }
    assert {name: kinds.count("image/png") for name, kinds in shown.items()} == FIGURES
    assert shown["use"].count("image/gif") == 1
