"""Runs of a user's own method, in a process that does not know it: all but training works."""

import json
import shutil
from dataclasses import dataclass

import pytest

from fedlap.algorithms import ALGORITHMS, FedU, Local
from fedlap.report.page import GraphSection
from fedlap.report.page.result_folders import load_results
from fedlap.report.page.result_page import build_page
from run_folders import RUN, TINY, files, read_error, rounds


@dataclass(frozen=True)
class Mine(Local):
    """Local training under another name, with a setting of its own."""

    mood: str = "calm"


@dataclass(frozen=True)
class Linked(FedU):
    """A method that uses a graph."""


@pytest.fixture(params=["mine", "linked"])
def unknown_run(request, call, tmp_path, monkeypatch):
    """A run of a method that was known when it was trained, and its scores by `show`."""
    name = request.param
    with monkeypatch.context() as known:
        known.setitem(ALGORITHMS, name, {"mine": Mine, "linked": Linked}[name])
        code, out, err = call(*RUN, "--algorithm", name, "--rounds", "3", "--json")
        assert code == 0, err
    (folder,) = (tmp_path / "runs").iterdir()
    return name, folder, json.loads(out)


def test_runs_and_show_list_its_scores(unknown_run, call, tmp_path):
    name, folder, answer = unknown_run
    code, out, err = call("runs", "--json")
    (line,) = map(json.loads, out.splitlines())
    assert (code, line["state"], line["round"], line["rounds"]) == (0, "done", 3, 3)
    assert (line["accuracy"], line["loss"]) == tuple(rounds(folder)[-1][key] for key in ("accuracy", "loss"))
    assert f"unknown method {name!r}" in " ".join(err.split())
    code, out, err = call("show", str(folder), "--json", "--to", str(tmp_path / "scores.csv"))
    assert (code, json.loads(out)) == (0, answer)
    assert f"unknown method {name!r}" in " ".join(err.split())
    assert (tmp_path / "scores.csv").read_text().count("\n") == 4
    code, out, _ = call("show", str(folder))
    assert code == 0
    assert name in out


def test_report_makes_its_page(unknown_run, call, no_figures):
    name, folder, _ = unknown_run
    code, _, err = call("report", str(folder), out=False)
    assert (code, err) == (0, "")
    page = (folder / "report" / "page.html").read_text()
    assert name in page
    assert "mood = calm" in page or name == "linked"
    sections = build_page(load_results([folder]), "").sections
    drawn = [section for section in sections if isinstance(section, GraphSection)]
    assert len(drawn) == (name == "linked")


def test_its_models_and_its_graph_are_used(unknown_run, call, tmp_path):
    name, folder, _ = unknown_run
    to = tmp_path / "model.safetensors"
    assert call("export", str(folder), "--client", "0", "--to", str(to), out=False)[0] == 0
    words = () if name == "linked" else ("--graph", "ring")
    assert call("graph", "describe", str(folder), *words, out=False)[0] == 0


def test_only_training_needs_the_method_and_says_so(unknown_run, call, monkeypatch):
    name, folder, _ = unknown_run
    before = files(folder)
    for words in (("resume", str(folder)), ("resume", str(folder), "--rounds", "5")):
        why = read_error(call(*words))
        assert f"method {name!r} is not registered in this process" in why
        assert f"fedlap.ALGORITHMS[{name!r}]" in why
    assert "unknown algorithm" in read_error(call("run", str(folder / "experiment.toml")))
    assert files(folder) == before
    monkeypatch.setitem(ALGORITHMS, name, {"mine": Mine, "linked": Linked}[name])
    code, _, err = call("resume", str(folder), "--rounds", "5")
    assert (code, "resumes from round 3" in err) == (0, True)
    assert len(rounds(folder)) == 5


def test_unfinished_and_compared_runs_of_it_are_read(unknown_run, call, tmp_path, monkeypatch, no_figures):
    name, folder, _ = unknown_run
    with monkeypatch.context() as known:
        known.setitem(ALGORITHMS, name, {"mine": Mine, "linked": Linked}[name])
        words = ("compare", *TINY, "--algorithms", f"{name},scaffold", "--seeds", "0-1", "--rounds", "2")
        compared = json.loads(call(*words, "--json")[1])
    code, _, err = call("report", compared["folder"], "--out", str(tmp_path / "page"), out=False)
    assert (code, "Traceback" in err) == (0, False)
    shutil.rmtree(folder / "checkpoint" / "round-00000003")
    lines = map(json.loads, call("runs", "--json")[1].splitlines())
    states = {line["run"]: line["state"] for line in lines if "run" in line}  # the others are groups
    assert states[folder.name] == "unfinished"
