"""`fedlap tune`: what the function does, what it writes, resuming, and mistakes in one line."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest

import fedlap as fl
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.run_folder import read_experiment

SMALL = ("--data", "synthetic", "--set", "data.clients=5", "--set", "data.rows=16", "--set", "dtype=float64")


def test_the_command_does_what_the_function_does(call):
    words = (*SMALL, "--graph", "known", "--vary", "strength=0,0.3", "--vary", "lr=0.02,0.1", "--folds", "3")
    code, out, err = call("tune", *words, "--rounds", "3", "--seeds", "0,2", "--json")
    assert code == 0, err
    answer = json.loads(out)
    assert (answer["fields"], answer["folds"], answer["seeds"]) == (["strength", "lr"], 3, [0, 2])
    values = [candidate["values"] for candidate in answer["candidates"]]
    assert values == [{"strength": s, "lr": lr} for s in (0, 0.3) for lr in (0.02, 0.1)]
    means = []
    for seed in (0, 2):
        problem = fl.data.synthetic(clients=5, rows=16, seed=seed)
        tuned = fl.tune(
            fl.FedU(problem.graph), problem.federation, fl.models.linear(),
            {"strength": [0, 0.3], "lr": [0.02, 0.1]},
            folds=3, rounds=3, seed=seed, dtype="float64",
        )  # fmt: skip
        means.append([candidate.validation for candidate in tuned.tried])
    for place, candidate in enumerate(answer["candidates"]):
        ours = [score["accuracy"] for score in candidate["scores"]]
        np.testing.assert_allclose(ours, np.concatenate([means[0][place], means[1][place]]), rtol=1e-9)
        assert candidate["mean"] == pytest.approx(np.mean(ours))
    best = max(answer["candidates"], key=lambda candidate: candidate["mean"])
    assert answer["best"] == best["values"]


def test_what_it_writes_and_the_commands_that_use_it(call, tmp_path):
    words = (*SMALL, "--vary", "strength=0,0.3", "--vary", "model.l2=0.5,0", "--folds", "2", "--seeds", "3")
    code, out, err = call("tune", *words, "--rounds", "4", "--strength", "9", "--graph", "known")
    assert code == 0, err
    (folder,) = (tmp_path / "runs").glob("synthetic-tune-*")
    assert sorted(file.name for file in folder.iterdir()) == ["table.md", "tune.json", "tuned.toml"]
    assert "fedu on synthetic: held-out training rows after round 4, mean ± std over 2 folds of seed 3" in out
    (row,) = [line for line in out.splitlines() if line.startswith(" best ")]
    tuned = read_experiment(folder / "tuned.toml")
    assert tuned.fold is None
    assert (tuned.seed, tuned.evaluate_every) == (3, "auto")
    assert f" {tuned.algorithm['strength']:g} " in row
    commands = [line.split(": ", 1)[1] for line in out.splitlines() if ": fedlap " in line]
    assert [command.split()[1] for command in commands] == ["run", "run", "compare", "tune", "tune"]
    assert "--tune" in commands[2]
    assert "--strength 9" not in commands[1]
    by_file = json.loads(call(*shlex.split(commands[0])[1:], "--json")[1])
    assert by_file["experiment"]["model"]["l2"] == tuned.model["l2"]
    again = call(*shlex.split(commands[1])[1:], "--json")
    assert json.loads(again[1])["folder"] == by_file["folder"]
    assert "this run is finished and loaded from" in again[2]
    assert "Laplacian" in call("cite", str(folder), out=False)[1]


@pytest.mark.slow
def test_a_comparison_is_proposed_with_values_of_each_method_s_own(call):
    words = (*SMALL, "--graph", "known", "--lr", "0.1", "--vary", "strength=0,0.3", "--folds", "2")
    answer = json.loads(call("tune", *words, "--rounds", "2", "--json")[1])
    compared = [command for command in answer["commands"] if " compare " in command]
    assert compared == answer["commands"][2:3]
    assert compared[0].startswith("fedlap compare --tune --algorithms fedu,local,global ")
    code, out, err = call(*shlex.split(compared[0])[1:], "--seeds", "0", "--json")
    assert code == 0, err
    assert set(json.loads(out)["tuning"]["values"]) == {"fedu", "local", "global"}
    rates = {}
    for command in answer["commands"][3:]:
        assert "--lr" not in command  # another method's rate
        assert "strength" not in command
        code, out, err = call(*shlex.split(command)[1:], "--json")
        assert code == 0, err
        last = json.loads(out)
        (name,) = last["algorithms"]
        rates[name] = last["best"]["lr"]
    assert set(rates) == {"local", "global"}
    *_, command = last["commands"]
    assert not any(" tune " in line for line in last["commands"])  # all three are
    code, out, err = call(*shlex.split(command.replace("0-4", "0"))[1:], "--json")
    assert code == 0, err
    runs = {run["values"]["algorithm"]["name"]: run["values"]["algorithm"] for run in json.loads(out)["runs"]}
    assert {name: runs[name]["lr"] for name in rates} == rates
    assert "known" in command  # the graph that fedu was tuned on
    assert (runs["fedu"]["lr"], runs["fedu"]["strength"]) == (0.1, answer["best"]["strength"])


def test_what_is_typed_comes_back(call):
    words = (*SMALL, "--vary", "graph={name = 'ring', weight = 0.5},ring", "--local-epochs", "1", "--scarce")
    code, out, err = call("tune", *words, "--vary", "batch=4,all", "--folds", "2", "--rounds", "1", "--json")
    assert code == 0, err
    answer = json.loads(out)
    asked = read_experiment(Path(answer["tuned"]))
    code, out, err = call(*shlex.split(answer["commands"][1])[1:], "--json")
    assert code == 0, err
    experiment = Experiment.of(json.loads(out)["experiment"])
    unresolved = {"content": "", "algorithm": asked.algorithm, "evaluate_every": asked.evaluate_every}
    assert experiment.model_copy(update=unresolved) == asked


def test_finished_runs_are_shown_and_stopped_ones_go_on(call, tmp_path):
    words = (*SMALL, "--vary", "lr=0.02,0.1", "--folds", "2", "--json")
    first = json.loads(call("tune", *words, "--rounds", "2")[1])
    _, out, err = call("tune", *words, "--rounds", "2")
    assert "4 of 4 runs are finished and loaded" in err
    assert json.loads(out)["candidates"] == first["candidates"]
    _, out, err = call("tune", *words, "--rounds", "5")
    assert "4 of 4 runs resume from round 2" in err
    went_on = json.loads(out)
    _, out, err = call("tune", *words, "--rounds", "5", "--again")
    assert "resume" not in err
    for one, other in zip(went_on["candidates"], json.loads(out)["candidates"], strict=True):
        assert one["mean"] == other["mean"]
        assert [s["loss"] for s in one["scores"]] == [s["loss"] for s in other["scores"]]


def test_data_are_loaded_once_a_seed_and_everything_is_one_stack(call, monkeypatch):
    loads = []
    load = Experiment.load
    monkeypatch.setattr(Experiment, "load", lambda self: (loads.append(self.seed), load(self))[1])
    vary = ("--vary", "lr=0.02,0.1", "--vary", "strength=0,3")
    code, _, err = call("tune", *SMALL, *vary, "--rounds", "2", "--seeds", "0,4", "--folds", "3")
    assert code == 0, err
    assert loads == [0, 4]
    assert err.count("round 2/2") == 1
    assert "3 values of lr × strength, seeds 0,4  round 2/2  validation accuracy" in err
    assert "warning: lr = 0.1, strength = 3 is skipped; algorithm.strength = 3 is too large" in err


def test_the_usual_values_are_tried_where_nothing_is_varied(call):
    code, out, err = call("tune", *SMALL, "--lr", "0.1", "--rounds", "1", "--folds", "2", "--json")
    assert code == 0, err
    tried = [candidate["values"] for candidate in json.loads(out)["candidates"]]
    assert tried == [{"strength": value} for value in (0.008, 0.02, 0.08, 0.2, 0.8)]
    assert " --lr 0.1 " in json.loads(out)["commands"][1]
    code, out, err = call("tune", *SMALL, "--algorithm", "fedavg", "--rounds", "1", "--folds", "2", "--json")
    assert [candidate["values"]["lr"] for candidate in json.loads(out)["candidates"]] == [
        0.003,
        0.01,
        0.03,
        0.1,
    ]


def test_a_candidate_that_diverges_is_shown_and_not_chosen(call):
    words = (
        "--data",
        "synthetic",
        "--set",
        "data.task=regression",
        "--set",
        "data.clients=5",
        "--folds",
        "2",
    )
    code, out, err = call("tune", *words, "--vary", "lr=9,0.01", "--rounds", "30")
    assert code == 0, err
    assert "best: lr = 0.01 (lowest mean RMSE on held-out training rows; ties go to the first)" in out
    assert "lr = 9 diverged and is not selected" in out
    assert err.count("training diverged") == 1
    code, out, err = call("tune", *words, "--vary", "lr=9,10", "--rounds", "30")
    assert code == 1
    assert "every candidate diverged" in out
    assert "to use it" not in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--vary", "lr=abc,1"), "error: with lr = abc: algorithm.lr = 'abc'"),
        (("--vary", "lr"), "error: --vary lr: expected field=value,value,…"),
        (("--vary", "nope=1"), "error: unknown field to vary 'nope'"),
        (("--vary", "seed=1,2"), "error: --vary seed=1,2: seeds cannot be varied; use --seeds"),
        (("--vary", "fold.number=2,3"),
         "error: --vary fold.number: tune does not take this field; use --folds"),
        (("--set", "fold.number=3"), "error: --set fold.number: tune does not take this field; use --folds"),
        (("--set", "seed=3"), "error: --set seed=3: tune does not take this field; use --seeds"),
        (("--folds", "1"), "error: Invalid value for '--folds'"),
        (("--folds", "1000"), "error: fold: fold 37 of 1000 is empty; use fewer folds"),
        (("--folds", "5000"), "error: Invalid value for '--folds'"),
        (("--lr", "0.1", "--strength", "0"), "error: tune: no setting of fedu is left to tune"),
        (("--vary", "strength=50,60"), "error: with strength = 50: algorithm.strength = 50 is too large"),
        (("--algorithm", "local", "--vary", "graph=ring,path"), "error: tune: graph = ring and graph = path"),
        (("--algorithm", "nope"), "error: unknown algorithm 'nope'"),
        (("--data", "nope"), "error: data.name: unknown data set 'nope'"),
        (("--vary", "lr=0.1", "--data", "gone.csv"), "error: with lr = 0.1: data: 'gone.csv'"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(call, words, says):
    code, out, err = call("tune", *words)
    assert code == 2
    assert out == ""
    assert err.startswith(says), err
    assert err.count("\n") == 1
