"""`fedlap report` of one run, a sweep, a tuning, other data, learned graphs, losses, and what diverged."""

import json
import re

import pytest

from fedlap.experiments.run_folder import list_run_folders
from fedlap.experiments.stored_run import load_experiment_data, load_trained_models
from fedlap.report.page.client_gains import score_clients
from fedlap.report.page.result_folders import load_results
from pages import page


def test_rows_of_one_algorithm_are_told_apart(call, tmp_path):
    for lr in ("0.01", "0.1"):
        assert call("run", "--rounds", "2", "--lr", lr)[0] == 0
    results = load_results([run.folder for run in list_run_folders(tmp_path / "runs")])
    assert {"fedu (lr = 0.01)", "fedu (lr = 0.1)"} == set(results.runs)


@pytest.mark.usefixtures("no_figures")
def test_one_run_alone(call, tmp_path):
    assert call("run", "--graph", "ring", "--rounds", "3")[0] == 0
    (run,) = list_run_folders(tmp_path / "runs")
    code, out, err = call("report", str(run.folder), out=False)
    assert (code, err) == (0, "")
    text = page(out).read_text("utf-8")
    for title in ("Scores", "Learning curves", "Objective", "Score per client", "Graph of fedu"):
        assert f">{title}<" in text
    assert '<h2 id="s-summary-head">' not in text  # there is nobody to lead
    assert "20 clients, 20 edges" in text


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("command", ["sweep", "tune"])
def test_sweeps_and_tunings(call, tmp_path, command):
    varied = ("--vary", "strength=0,0.001,0.1", "--vary", "batch=10,20")
    more = ("--folds", "2") if command == "tune" else ("--seeds", "0,1")
    assert call(command, *varied, *more, "--rounds", "2")[0] == 0
    folder = next((tmp_path / "runs").glob(f"*-{command}-*"))
    facts = json.loads(next(folder.glob("*.json")).read_bytes())
    again = json.loads(json.dumps(load_results([folder]).comparison.as_dict()))
    assert again == {key: facts[key] for key in again}
    code, out, err = call("report", str(folder), out=False)
    assert (code, err) == (0, "")
    text = page(out).read_text("utf-8")
    assert "Effect of strength" in text
    assert "<dt>batch</dt><dd>varied</dd>" in text
    assert ("Score per client" in text) == (command == "sweep")  # folds have no test rows of their own
    assert ("<small>selected</small>" in text) == (command == "tune")
    assert ("test rows" in text) == (command == "sweep")
    if command == "tune":
        assert "one standard deviation over folds" in text


@pytest.mark.usefixtures("no_figures")
def test_rows_of_other_data_have_no_clients_beside_the_first(call, tmp_path):
    words = "--vary", "scarce.keep=0.5,0.9", "--seeds", "0", "--rounds", "2"
    assert call("sweep", *words)[0] == 0
    code, out, err = call("report", str(next((tmp_path / "runs").glob("*-sweep-*"))), out=False)
    assert code == 0
    assert "clients of scarce.keep = 0.9 are omitted; its data differ" in " ".join(err.split())
    charts = re.findall(r'class="one scroll" data-name="([^"]+)"', page(out).read_text("utf-8"))
    assert charts == ["scarce.keep = 0.5"]


@pytest.mark.usefixtures("no_figures")
def test_a_learned_graph_is_drawn_beside_the_other(call, tmp_path):
    words = "--algorithms", "fedu-learned,fedu,local", "--seeds", "0", "--rounds", "3"
    warm = "--set", "algorithm.warmup=1"
    assert call("compare", *words, *warm)[0] == 0
    code, out, _ = call("report", str(next((tmp_path / "runs").glob("*-compare-*"))), out=False)
    assert code == 0
    text = page(out).read_text("utf-8")
    assert "Graph of fedu-learned" in text
    assert "Graph of fedu<" in text
    assert "20 clients, 190 edges" in text  # of fedu alone


@pytest.mark.usefixtures("no_figures")
def test_regression_counts_losses(call, tmp_path):
    words = "--data", "synthetic", "--set", "data.task=regression", "--set", "data.clients=6"
    assert call("compare", *words, "--algorithms", "fedu,local", "--seeds", "0,1", "--rounds", "3")[0] == 0
    folder = next((tmp_path / "runs").glob("*-compare-*"))
    found = load_results([folder])
    run, scores = found.runs["local"][0], found.comparison.runs["local"][0]
    client_scores = score_clients(load_experiment_data(run.experiment)[0], load_trained_models(run.folder))
    assert -client_scores.mean() == pytest.approx(scores[-1].rmse_mean, rel=1e-6)
    code, out, err = call("report", str(folder), out=False)
    assert (code, err) == (0, "")
    text = page(out).read_text("utf-8")
    assert "Reduction of each client&#x27;s test RMSE" in text
    assert "Label distribution" not in text


@pytest.mark.usefixtures("no_figures")
def test_diverged_runs_are_said_and_not_ranked(call, tmp_path):
    words = "--data", "synthetic", "--set", "data.task=regression", "--set", "data.clients=5"
    unstable = "--strength", "1e9", "--set", "algorithm.allow_unstable=true", "--rounds", "10"
    assert call("compare", *words, "--algorithms", "fedu,local,fedavg", "--seeds", "0-1", *unstable)[0] == 1
    folder = next((tmp_path / "runs").glob("*-compare-*"))
    code, out, _ = call("report", str(folder), out=False)
    assert code == 0
    text = page(out).read_text("utf-8")
    assert 'class="muted">diverged<' in text
    assert "Diverged, not drawn: fedu." in text
    assert "fedu diverged in 2 of 2 seeds and is not ranked" in text
    run = next(
        run for run in list_run_folders(tmp_path / "runs") if run.experiment.algorithm["name"] == "fedu"
    )
    assert call("report", str(run.folder), out=False)[0] == 0
