"""Folders of `fl.fit` in commands: they are listed, shown, reported and removed; training needs Python."""

import json

import pytest

import fedlap as fl


@pytest.fixture
def fit_runs(tmp_path, federation, graph):
    """Two runs of `fl.fit` in the folder of runs, and one outside of it."""
    (tmp_path / "runs").mkdir()
    method, model = fl.FedU(graph, strength=0.01), fl.models.linear()
    results = {
        "first": fl.fit(method, federation, model, rounds=3, folder=tmp_path / "runs" / "first"),
        "own": fl.fit(OwnMethod(), federation, model, rounds=2, seed=5, folder=tmp_path / "runs" / "own"),
    }
    fl.fit(method, federation, model, rounds=1, folder=tmp_path / "elsewhere")
    return tmp_path / "runs", results


class OwnMethod(fl.Local):
    """A method of a user."""


def test_runs_are_listed_by_their_classes(call, fit_runs):
    _, results = fit_runs
    code, out, err = call("runs", "--json")
    assert (code, err) == (0, "")
    listed = {run["run"]: run for run in map(json.loads, out.splitlines())}
    assert set(listed) == {"first", "own"}
    for name, result in results.items():
        run, last = listed[name], result.scores[-1]
        assert (run["data"], run["algorithm"]) == ("Federation", type(result.algorithm).__name__)
        assert (run["accuracy"], run["loss"]) == (last.accuracy, last.loss)
        assert (run["round"], run["rounds"], run["state"]) == (last.round, last.round, "done")
    assert listed["own"]["seed"] == 5
    assert listed["first"]["settings"]["algorithm.strength"] == 0.01
    assert len(call("runs", "--json", "--algorithm", "fedu")[1].splitlines()) == 1


@pytest.mark.parametrize("folder", ["elsewhere", "."])
def test_runs_elsewhere_are_listed_if_the_folder_is_passed(call, fit_runs, folder):
    out = call("runs", "--json", "--out", str(fit_runs[0].parent / folder), out=False)[1]
    assert [json.loads(line)["run"] for line in out.splitlines()] == ["elsewhere"]


def test_a_run_is_shown_and_reported(call, fit_runs, tmp_path, no_figures):
    runs, results = fit_runs
    code, out, err = call("show", "first", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["last"]["objective"] == results["first"].scores[-1].objective
    code, out, err = call("report", str(runs / "first"), "--out", str(tmp_path / "page"), out=False)
    assert code == 0
    assert err.count("\n") == 1
    assert "data 'Federation' of this run is a Python object" in err
    assert "FedU" in (tmp_path / "page" / "page.html").read_text()


@pytest.mark.parametrize("words", [("resume",), ("clients",), ("theory",)])
def test_commands_that_need_the_objects_say_so(call, fit_runs, words):
    code, _, err = call(*words, "first")
    assert code == 2
    assert err.startswith("error: data 'Federation' of this run is a Python object")
    assert err.count("\n") == 1


def test_a_run_is_removed_only_from_its_folder(call, fit_runs):
    runs, _ = fit_runs
    code, _, err = call("rm", str(runs.parent / "elsewhere"), "--yes")
    assert code == 2
    assert "--out" in err
    assert call("rm", "first", "--yes")[0] == 0
    assert sorted(path.name for path in runs.iterdir()) == ["own"]


def test_a_damaged_run_is_listed(call, fit_runs):
    runs, _ = fit_runs
    (runs / "own" / "fit.toml").write_text("rounds = 3\n")
    code, out, err = call("runs", "--json")
    assert code == 0
    assert "note: own is damaged: " in err
    assert {run["run"]: run["state"] for run in map(json.loads, out.splitlines())}["own"] == "damaged"
    code, _, err = call("show", "own")
    assert (code, err.count("\n")) == (2, 1)


def test_the_command_line_does_not_train_objects(call, tmp_path):

    (tmp_path / "copy.toml").write_text('seed = 1\n[objects]\ndata = "sha256:0"\n[data]\nname = "mine"\n')
    code, _, err = call("run", str(tmp_path / "copy.toml"))
    assert code == 2
    assert "data 'mine' of this run is a Python object" in err
