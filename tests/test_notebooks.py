"""Notebooks in examples/notebooks run from top to bottom and stay short."""

import json
import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "notebooks"
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))
MOST_LINES = 25  # of code, to compare an own network and an own method


def count_code_lines(name):
    cells = json.loads((FOLDER / name).read_text("utf-8"))["cells"]
    text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    return sum(bool(line.strip()) for line in text.splitlines())


def test_there_are_two_notebooks():
    assert NOTEBOOKS == ["own_method.ipynb", "table_to_answers.ipynb"]


def test_an_own_method_is_compared_in_few_lines():
    assert count_code_lines("own_method.ipynb") <= MOST_LINES


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_outputs_are_not_stored(name):
    cells = json.loads((FOLDER / name).read_text("utf-8"))["cells"]
    assert not any(cell.get("outputs") for cell in cells)


@pytest.mark.filterwarnings("ignore")  # of the notebook packages, which are not ours
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_run(name, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    for file in FOLDER.glob("*.csv"):
        shutil.copy(file, tmp_path)
    notebook = nbformat.read(FOLDER / name, 4)
    client = NotebookClient(
        notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")
    if name == "own_method.ipynb":
        assert (tmp_path / "report" / "page.html").stat().st_size > 10_000
