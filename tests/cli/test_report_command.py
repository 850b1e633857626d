"""`fedlap report`: the page of a comparison, by its folder and by its runs; mistakes are one line."""

import json
import re
import shutil
import sys
import webbrowser
from pathlib import Path

import numpy as np
import pytest

from fedlap.experiments.run_folder import RunFolder, list_run_folders
from fedlap.experiments.stored_run import load_experiment_data, load_trained_models
from fedlap.report.page.client_gains import score_clients
from fedlap.report.page.result_folders import load_results
from fedlap.report.page.result_sections import find_significant_leaders
from pages import page

COMPARED = ("compare", "--algorithms", "fedu,local,fedavg", "--seeds", "0-2", "--rounds", "4")


@pytest.fixture(scope="module")
def original_runs(tmp_path_factory):
    """A comparison that every test gets a copy of."""
    from fedlap import cli

    out = tmp_path_factory.mktemp("trained") / "runs"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["fedlap", *COMPARED, "--out", str(out)])
        with pytest.raises(SystemExit):
            cli.main()
    return out


@pytest.fixture
def comparison_folder(original_runs, tmp_path):
    shutil.copytree(original_runs, tmp_path / "runs")
    return next((tmp_path / "runs").glob("*-compare-*"))


def test_a_comparison_becomes_a_page(call, comparison_folder):
    code, out, err = call("report", str(comparison_folder), out=False)
    assert (code, err) == (0, "")
    assert page(out) == comparison_folder / "report" / "page.html"
    text = page(out).read_text("utf-8")
    for title in (
        "Scores", "Summary", "Learning curves", "Clients compared with local",
        "Gain per client over local", "Label distribution", "Graph of fedu", "Settings",
        "Environment", "Reproduce this page",
    ):  # fmt: skip
        assert f">{title}<" in text
    # The same numbers as in the table that compare printed.
    for cell in re.findall(r"\d+\.\d+ ± \d+\.\d+", (comparison_folder / "table.md").read_text("utf-8")):
        assert cell in text
    assert "fedlap compare --algorithms fedu,local,fedavg --seeds 0-2 --rounds 4" in text
    assert f"fedlap report {comparison_folder}" in text
    names = {path.name for path in (comparison_folder / "report").rglob("*.*")}
    assert {
        "scores.md",
        "scores.csv",
        "scores.tex",
        "clients.csv",
        "curves.png",
        "gains.pdf",
        "graph.png",
    } <= names


def test_compare_names_the_command(call, comparison_folder, tmp_path):
    code, out, _ = call(*COMPARED)  # it is there already
    assert code == 0
    assert out.splitlines()[-1].endswith(f"; `fedlap report {comparison_folder}` writes an HTML report")


def test_the_comparison_is_what_it_was(comparison_folder):
    comparison = load_results([comparison_folder]).comparison
    facts = json.loads((comparison_folder / "comparison.json").read_bytes())
    again = json.loads(json.dumps(comparison.as_dict()))
    assert again == {key: facts[key] for key in again}


def test_clients_scores_are_those_of_the_run(call, comparison_folder):
    found = load_results([comparison_folder])
    for row, runs in found.runs.items():
        for run, scores in zip(runs, found.comparison.runs[row], strict=True):
            federation = load_experiment_data(run.experiment)[0]
            client_scores = score_clients(federation, load_trained_models(run.folder))
            assert np.nanmean(client_scores) == pytest.approx(100 * scores[-1].accuracy_mean, abs=1e-9)


@pytest.mark.usefixtures("no_figures")
def test_folders_may_move_together(call, comparison_folder, tmp_path):
    shutil.move(tmp_path / "runs", tmp_path / "elsewhere")
    moved = tmp_path / "elsewhere" / comparison_folder.name
    code, out, _ = call("report", str(moved), "--out", str(tmp_path / "page"), out=False)
    assert code == 0
    assert page(out) == tmp_path / "page" / "page.html"


@pytest.mark.usefixtures("no_figures")
def test_runs_by_name_are_put_into_rows(call, comparison_folder, tmp_path):
    folders = [str(run.folder) for run in list_run_folders(tmp_path / "runs")]
    results = load_results([Path(folder) for folder in folders])
    whole = load_results([comparison_folder])
    assert {row: [run.name for run in runs] for row, runs in results.runs.items()} == {
        row: [run.name for run in runs] for row, runs in whole.runs.items()
    }
    assert sorted(results.comparison.table_rows()) == sorted(whole.comparison.table_rows())
    code, out, _ = call("report", *folders, "--out", str(tmp_path / "page"), out=False)
    assert code == 0
    assert f"fedlap run {folders[0]}/experiment.toml" in page(out).read_text("utf-8")


def test_the_best_is_marked_only_where_the_test_supports_it(call, comparison_folder):
    comparison = load_results([comparison_folder]).comparison
    leads = comparison.compare_leader()
    wanted = all(lead.significant or lead.pair.identical for lead in leads) and any(
        lead.significant for lead in leads
    )
    assert bool(find_significant_leaders(comparison)) == wanted
    apart = RunFolder.open(load_results([comparison_folder]).runs["fedu"][0].folder)
    alone = load_results([apart.folder]).comparison
    assert find_significant_leaders(alone) == []  # one row has nobody to be better than


@pytest.mark.usefixtures("no_figures")
def test_a_run_that_went_on_keeps_its_numbers_but_not_its_clients(call, comparison_folder, tmp_path):
    run = next(
        run for run in list_run_folders(tmp_path / "runs") if run.experiment.algorithm["name"] == "fedavg"
    )
    assert call("resume", str(run.folder), "--rounds", "6", out=False)[0] == 0
    code, out, err = call("report", str(comparison_folder), out=False)
    assert code == 0
    assert "clients of fedavg are omitted; its scores are of round" in " ".join(err.split())
    assert load_results([comparison_folder]).comparison.runs["fedavg"][0][-1].round == 4
    assert 'data-name="fedavg"><h4>' not in page(out).read_text("utf-8")


@pytest.mark.usefixtures("no_figures")
def test_open_asks_for_a_browser(call, comparison_folder, monkeypatch):
    asked = []
    monkeypatch.setattr(webbrowser, "open", lambda address: asked.append(address) or False)
    code, out, err = call("report", str(comparison_folder), "--open", out=False)
    assert (code, asked) == (0, [out.strip()])
    assert "no browser found" in err


# --------------------------------------------------------------------------------------------- mistakes


def one_line(answer, *parts):
    code, out, err = answer
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    text = " ".join(err.split())
    for part in parts:
        assert part in text
    assert "Traceback" not in err


def test_mistakes_are_one_line(call, comparison_folder, tmp_path):
    runs = list_run_folders(tmp_path / "runs")
    by = {run.experiment.algorithm["name"]: run.folder for run in runs}
    one_line(call("report", str(tmp_path / "nowhere"), out=False), "no run")
    one_line(call("report", str(tmp_path / "runs"), out=False), "pass one of them", comparison_folder.name)
    one_line(call("report", str(comparison_folder), str(by["fedu"]), out=False), "pass it alone")
    one_line(call("report", str(by["fedu"]), str(by["fedu"]), out=False), "is given twice")
    one_line(call("report", out=False), "Missing argument")
    seeds = {(run.experiment.algorithm["name"], run.experiment.seed): str(run.folder) for run in runs}
    answer = call("report", seeds["fedu", 0], seeds["local", 1], out=False)
    one_line(answer, "runs of fedu have seeds [0], runs of local [1]")
    (tmp_path / "file").write_text("")
    answer = call("report", str(comparison_folder), "--out", str(tmp_path / "file" / "under"), out=False)
    one_line(answer, "cannot be written")


def test_other_data_cannot_be_compared(call, tmp_path):
    for words in ((), ("--scarce",)):
        assert call("run", "--rounds", "1", *words)[0] == 0
    folders = [str(run.folder) for run in list_run_folders(tmp_path / "runs")]
    one_line(call("report", *folders, out=False), "have different data (scarce)", "write one page for each")


def test_unfinished_runs_are_said(call, comparison_folder, tmp_path):
    run = list_run_folders(tmp_path / "runs")[0]
    shutil.rmtree(run.folder / "checkpoint")
    one_line(call("report", str(run.folder), out=False), "is not finished", "fedlap resume")
    one_line(call("report", str(comparison_folder), out=False), "is not finished")
    shutil.rmtree(run.folder)
    one_line(call("report", str(comparison_folder), out=False), "no run")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda facts: facts.pop("kept"), "has no 'kept'"),
        (lambda facts: facts.update(algorithms=[1]), "is damaged"),
        (lambda facts: facts["kept"].pop("fedu"), "is damaged"),
    ],
)
def test_damaged_comparisons_are_said(call, comparison_folder, change, reason):
    file = comparison_folder / "comparison.json"
    facts = json.loads(file.read_bytes())
    change(facts)
    file.write_text(json.dumps(facts))
    one_line(call("report", str(comparison_folder), out=False), reason, "run `fedlap compare` again")


@pytest.mark.usefixtures("no_figures")
def test_data_that_changed_are_said_and_left_out(call, tmp_path):
    rows = [f"{c},{x},{x % 2}" for c in "ab" for x in range(20)]
    (tmp_path / "my.csv").write_text("\n".join(["who,x,y", *rows]))
    words = "--data", str(tmp_path / "my.csv"), "--client", "who", "--label", "y", "--rounds", "2"
    assert call("run", *words)[0] == 0
    (run,) = list_run_folders(tmp_path / "runs")
    (tmp_path / "my.csv").unlink()
    code, out, err = call("report", str(run.folder), out=False)
    assert code == 0
    assert "clients and graph are omitted" in " ".join(err.split())
    assert "Learning curves" in page(out).read_text("utf-8")
