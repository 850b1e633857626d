"""Fewer rounds than a folder has: scores are those of the requested round, and a note names the folder's."""

import json
from pathlib import Path

import pytest

from fedlap.report.page import BarsSection, GraphSection, TableSection
from fedlap.report.page.result_folders import load_results
from fedlap.report.page.result_page import build_page
from fedlap.report.page.result_sections import build_settings_sections
from run_folders import RUN, TINY, running  # noqa: F401 — a fixture


def test_a_run_says_that_its_folder_is_past_the_round_shown(run, call):
    folder, _ = run("--rounds", "5")
    code, out, _ = call(*RUN, "--rounds", "2")
    assert code == 0
    assert "after round 2," in out
    shown = " ".join(out.split())
    assert "These are the scores of round 2; the folder and its models are at round 5." in shown
    answer = json.loads(call(*RUN, "--rounds", "2", "--json")[1])
    assert (answer["experiment"]["rounds"], answer["last"]["round"], answer["folder_round"]) == (2, 2, 5)
    answer = json.loads(call("resume", str(folder), "--rounds", "2", "--json")[1])
    assert (answer["experiment"]["rounds"], answer["last"]["round"], answer["folder_round"]) == (2, 2, 5)
    for words in (("show", str(folder)), (*RUN, "--rounds", "5")):
        assert "These are the scores" not in call(*words)[1]
        answer = json.loads(call(*words, "--json")[1])
        assert (answer["experiment"]["rounds"], answer["last"]["round"], answer["folder_round"]) == (5, 5, 5)


def test_a_learned_graph_is_named_by_its_round(run, call):
    words = ("--algorithm", "fedu-learned", "--set", "data.clients=6")
    run(*words, "--rounds", "4")
    assert "learned graph: 6 clients" in call(*RUN, *words, "--rounds", "4")[1]
    assert "learned graph of round 4: 6 clients" in call(*RUN, *words, "--rounds", "2")[1]


COMMANDS = {
    "compare": ("--algorithms", "local,fedu-learned", "--seeds", "0"),
    "sweep": ("--algorithm", "fedu-learned", "--vary", "lr=0.01,0.1", "--seeds", "0"),
}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_runs_that_are_past_the_round_shown_are_counted_and_kept_off_the_page(
    command, call, tmp_path, no_figures
):
    words = (command, *TINY, *COMMANDS[command])
    code, out, err = call(*words, "--rounds", "4", "--json")
    assert code == 0
    assert "trained further" not in err
    assert list(json.loads(out)["folder_rounds"].values()) == [[4], [4]]
    code, out, err = call(*words, "--rounds", "2", "--json")
    assert code == 0
    assert "note: 2 of 2 runs were trained further, up to round 4;" in err
    answer = json.loads(out)
    assert list(answer["folder_rounds"].values()) == [[4], [4]]
    code, _, err = call("report", answer["folder"], out=False)
    assert code == 0
    message = " ".join(err.split())
    why = "its scores are of round 2, but it was trained to round 4 since; repeat the command with"
    assert message.count(f"{why} --rounds 4") == 3
    assert "note: the learned graph of" in message
    folder = Path(answer["folder"])
    assert "after round 2" in (folder / "report" / "page.html").read_text()
    kinds = {type(section) for section in build_page(load_results([folder]), "").sections}
    assert TableSection in kinds
    assert not kinds & {GraphSection, BarsSection}


def test_the_settings_on_a_page_say_the_rounds_of_its_scores(call):
    words = ("sweep", *TINY, "--vary", "rounds=2,4", "--seeds", "0", "--json")
    folder = json.loads(call(*words)[1])["folder"]
    facts = dict(next(build_settings_sections(load_results([Path(folder)]))).facts)
    assert facts["rounds"] == "varied"
