"""The tutorials in docs/start run from top to bottom, and what they say about their results holds."""

import json
import re
import shlex
import shutil
from pathlib import Path

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient

from fedlap.experiments.run_folder import list_run_folders
from fedlap.personal import Personal, Personals

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "start"
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))
FIRST, COMPARE = "first-models.ipynb", "compare-methods.ipynb"
MOST_LINES = 25  # of code, to compare an own network and an own method

FACTS = {  # expressions whose values the tests below compare with the text
    FIRST: """{
        "rmse": comparison.table["pooled_rmse_mean"].to_dict(),
        "tests": dict(zip(comparison.tests["other"], comparison.tests["verdict"])),
        "gains": [int((answers.gain > 0).sum()), int((answers.gain < 0).sum())],
        "untested": int(answers.gain.isna().sum()),
        "models": result.models.tolist(),
        "joined": [rmse(predicted), rmse(first["log_radon"].mean())],
    }""",
    COMPARE: """{
        "accuracy": comparison.table["pooled_accuracy_percent_mean"].to_dict(),
        "own": fl.compare(two, **setting, seeds=[0], rounds=40).table.iloc[:, 2].to_dict(),
    }""",
}


def read_cells(name, kind):
    cells = json.loads((FOLDER / name).read_text("utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == kind]


def read_commands(name):
    """Return the words of every command of the notebook's shell block."""
    (block,) = re.findall(r"^```shell\n(.*?)^```$", "\n".join(read_cells(name, "markdown")), re.S | re.M)
    return [shlex.split(line)[1:] for line in block.replace("\\\n", " ").splitlines()]


def copy_tables(folder):
    for file in FOLDER.glob("*.csv"):
        shutil.copy(file, folder)


@pytest.fixture(scope="module", params=NOTEBOOKS)
def tutorial(request, tmp_path_factory):
    """A notebook after it has run, its name, its folder, and the facts that it claims."""
    folder = tmp_path_factory.mktemp("tutorial")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("IPYTHONDIR", str(folder / "ipython"))
        copy_tables(folder)
        notebook = nbformat.read(FOLDER / request.param, 4)
        question = f"import json\nprint(json.dumps({FACTS[request.param]}))"
        notebook.cells.append(nbformat.v4.new_code_cell(question))
        NotebookClient(
            notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
        ).execute()
    facts = json.loads(notebook.cells[-1].outputs[-1].text)
    return request.param, notebook, folder, facts


def test_there_are_two_notebooks():
    assert {FIRST, COMPARE} == set(NOTEBOOKS)


def test_an_own_method_is_compared_in_few_lines():
    code = "\n".join(read_cells(COMPARE, "code"))
    assert sum(bool(line.strip()) for line in code.splitlines()) <= MOST_LINES


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_outputs_are_not_stored(name):
    cells = json.loads((FOLDER / name).read_text("utf-8"))["cells"]
    assert not any(cell.get("outputs") for cell in cells)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_can_be_downloaded_with_their_files(name):
    page = (FOLDER / "index.md").read_text("utf-8")
    code = "\n".join(read_cells(name, "code"))
    for file in [name, *re.findall(r'read_csv\("(.*?)"\)', code)]:
        assert (FOLDER / file).exists()
        for text in (page, "\n".join(read_cells(name, "markdown"))):
            assert re.search(rf"\{{download\}}`([^`]*<)?{re.escape(file)}>?`", text), file


@pytest.mark.docs
@pytest.mark.filterwarnings("ignore")  # of the notebook packages, which are not ours
def test_notebooks_do_what_they_say(tutorial):
    name, notebook, folder, facts = tutorial
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")
    if name == COMPARE:
        assert (folder / "report.html").stat().st_size > 10_000
        assert set(facts["accuracy"]) == {"fedavg", "local", "ditto", "fedper", "fedu"}
        assert facts["own"]["median"] < facts["own"]["fedavg"]  # the price of a median
        return
    rmse, verdicts = facts["rmse"], facts["tests"]
    assert {verdicts[name] for name in ("fedu (shuffled)", "local", "global")} == {"better"}
    assert rmse["global"] - rmse["fedu (borders)"] < rmse["local"] - rmse["fedu (borders)"]
    assert facts["gains"][0] > facts["gains"][1] > 0
    assert facts["untested"] == 3  # counties with a single house: white on the map
    assert facts["joined"][0] < facts["joined"][1] - 0.1
    assert (folder / "aitkin.safetensors").exists()


@pytest.mark.docs
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("tutorial", [FIRST], indirect=True)
def test_the_commands_give_the_numbers_of_the_notebook(tutorial, call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    copy_tables(tmp_path)
    facts, run = tutorial[3], None
    for words in read_commands(FIRST):
        json_output = ["--json"] if words[0] == "compare" else []
        code, out, err = call(*[run if word == "RUN" else word for word in words], *json_output)
        assert code == 0, err
        if run is None:
            run = str(list_run_folders(tmp_path / "runs")[0].folder)
        if json_output:
            runs = json.loads(out)["algorithms"]
    models = Personals.load(Path(run) / "models").models
    np.testing.assert_array_equal(models.tolist(), facts["models"])
    means = {name: np.mean([score["rmse"] for score in scores]) for name, scores in runs.items()}
    assert sorted(means.values()) == pytest.approx(sorted(facts["rmse"].values()))
    assert Personal.load("scott.safetensors").client == "Scott"
    assert list(tmp_path.rglob("page.html"))


@pytest.mark.slow
def test_the_command_of_the_comparison_works(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (words,) = read_commands(COMPARE)
    code, out, err = call(*words)
    assert code == 0, err
    assert "fedper" in out
