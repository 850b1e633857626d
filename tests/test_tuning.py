"""Tuning: what it chooses, that no test row has a say in it, and what it says."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fedlap as fl
from conftest import random_arrays, random_weights
from fedlap import memory, tuning
from fedlap.errors import DivergedError
from fedlap.experiment import Experiment
from fedlap.memory import Sized
from fedlap.report.tuning import Tuning
from fedlap.runs import read_experiment
from fedlap.schedule import Schedule
from fedlap.scores import Score
from fedlap.trials import Trial, suited
from fedlap.tuning import grid

LINEAR = fl.models.linear()
SMALL = ("--data", "synthetic", "--set", "data.clients=5", "--set", "data.rows=16", "--set", "dtype=float64")


def around(smoothness, seed):
    """Clients around a ring whose true models are alike, or not, and that ring."""
    made = fl.data.synthetic(clients=20, smoothness=smoothness, test_rows=0, seed=seed)
    return made.federation, made.graph


@pytest.mark.parametrize(("smoothness", "alike"), [(10.0, True), (0.0, False)])
@pytest.mark.parametrize("seed", [0, 1])
def test_strength_is_chosen_where_neighbours_are_alike_and_not_where_they_are_strangers(
    smoothness, alike, seed
):
    federation, graph = around(smoothness, seed)
    vary = {"strength": [0.0, 0.001, 0.3, 0.9]}
    made = fl.tune(fl.FedU(graph, lr=0.1), federation, LINEAR, vary, rounds=25, seed=seed)
    chosen = made.best.values["strength"]
    assert (chosen >= 0.3) if alike else (chosen <= 0.001)
    assert made.algorithm.strength == chosen
    means = [each.validation.mean() for each in made.tried]
    assert max(means) - min(means) > 0.03


def other_tests(federation, seed):
    """The same training rows with other test rows."""
    names = federation.clients
    train = {name: federation.train.client(k) for k, name in enumerate(names)}
    rng = np.random.default_rng(seed)
    x, y = 100 * rng.normal(size=(7, 4)), rng.integers(0, 3, 7)
    return fl.Federation.from_arrays(train, test=dict.fromkeys(names, (x, y)), labels=3).scaled("pooled")


def test_test_rows_have_no_say(federation, graph):
    vary = {"lr": [0.01, 0.1], "strength": [0.01, 0.3]}
    one, other = (
        fl.tune(fl.FedU(graph), other_tests(federation, seed), LINEAR, vary, folds=3, rounds=5)
        for seed in (1, 2)
    )
    assert one.best.values == other.best.values
    for a, b in zip(one.tried, other.tried, strict=True):
        assert [replace(s, seconds=0.0) for s in a.scores] == [replace(s, seconds=0.0) for s in b.scores]


METHODS = {
    "fedu": (fl.FedU, {"lr": [0.02, 0.1], "strength": [0.0, 0.3]}),
    "lasso": (fl.NetworkLasso, {"strength": [0.001, 0.01]}),
    "mocha": (fl.Mocha, {"strength": [0.01, 1.0]}),
    "fedavg": (lambda graph: fl.FedAvg(), {"lr": [0.02, 0.1]}),
    "global": (lambda graph: fl.Global(local_epochs=1), {"lr": [0.02, 0.1]}),
    "l2gd": (lambda graph: fl.L2GD(), {"strength": [0.01, 0.1]}),
}


@pytest.mark.parametrize("name", METHODS)
def test_candidates_together_are_runs_by_themselves(name, federation, graph):
    make, vary = METHODS[name]
    how = {"rounds": 3, "batch": 5, "dtype": "float64", "seed": 2}
    made = fl.tune(make(graph), federation, LINEAR, vary, folds=2, **how)
    assert [list(each.values) for each in made.tried] == [list(vary)] * len(made.tried)
    for each in made.tried:
        for held_out, score in enumerate(each.scores):
            assert isinstance(score, Score)
            fold = federation.fold(2, held_out, seed=2)
            alone = fl.fit(each.algorithm, fold, LINEAR, engine="one_by_one", **how).scores[-1]
            for field in ("accuracy", "loss", "objective", "train_loss", "loss_worst"):
                assert getattr(score, field) == pytest.approx(getattr(alone, field), rel=1e-9), field


def test_all_folds_and_candidates_are_one_stack(federation, graph, monkeypatch):
    sizes = []
    fit_all = tuning.fit_all
    monkeypatch.setattr(
        tuning, "fit_all", lambda trials, *rest: (sizes.append(len(trials)), fit_all(trials, *rest))[1]
    )
    fl.tune(fl.FedU(graph), federation, LINEAR, {"strength": [0.0, 0.1], "lr": [0.1, 0.2]}, folds=3, rounds=1)
    fl.tune(fl.Mocha(graph), federation, LINEAR, {"strength": [0.01, 0.1]}, folds=2, rounds=1)
    fl.tune(fl.L2GD(), federation, LINEAR, {"strength": [0.01, 0.1]}, folds=2, rounds=1)  # is not steady
    assert sizes == [12, 4, 1, 1, 1, 1]


def test_rows_that_runs_share_are_counted_once(federation, graph, monkeypatch):
    schedule = Schedule()
    wide = fl.Federation.from_arrays(random_arrays([50, 60], features=300), labels=3)
    model = suited(fl.FedAvg(), wide, LINEAR)[1]
    shared = [Sized(Trial(fl.FedAvg(), wide, LINEAR), model, schedule) for _ in range(6)]
    apart = [replace(run, trial=replace(run.trial, federation=replace(wide))) for run in shared]
    room = shared[0].data() + 6 * shared[0].models()
    monkeypatch.setattr(memory, "_free", lambda _: room / memory.USABLE)
    assert memory.stacks(shared) == [[0, 1, 2, 3, 4, 5]]
    assert len(memory.stacks(apart)) > 1
    monkeypatch.setattr(memory, "_free", lambda _: 0)
    assert len(memory.stacks(shared)) == 6


def test_models_at_work_fit_into_a_cpus_cache(federation, graph, monkeypatch):
    def runs(sample):
        model = suited(fl.FedAvg(), federation, LINEAR)[1]
        return [
            Sized(Trial(fl.FedAvg(), federation, LINEAR), model, Schedule(sample=sample)) for _ in range(6)
        ]

    threads = torch.get_num_threads()
    monkeypatch.setattr(memory, "CACHED", 2 * runs(1.0)[0].working() // threads + 1)
    assert memory.stacks(runs(1.0)) == [[0, 1], [2, 3], [4, 5]]
    assert memory.stacks(runs(0.5)) == [[0, 1, 2], [3, 4, 5]]
    monkeypatch.setattr(memory, "CACHED", 0)
    assert len(memory.stacks(runs(0.5))) == 6


def test_graphs_and_anything_else_of_a_method_can_be_tried(federation, graph):
    vary = {"graph": [graph, fl.Graph.ring(federation.clients)], "neighbours": ["all", "sampled"]}
    made = fl.tune(fl.FedU(graph, 0.01), federation, LINEAR, vary, folds=2, rounds=1)
    assert [each.values["neighbours"] for each in made.tried] == ["all", "sampled"] * 2


def test_the_usual_grid(graph, federation):
    rho = graph.rho
    made = grid(fl.FedU(graph, local_steps=2))
    assert made["lr"] == [0.003, 0.01, 0.03, 0.1]
    largest = 2 / (0.03 * 2 * rho)
    assert largest / 2 < made["strength"][-1] <= largest
    assert all(float(f"{value:.0e}") == value for value in made["strength"])
    shares = np.array(made["strength"]) / made["strength"][-1]
    np.testing.assert_allclose(shares, [0.01, 0.03, 0.1, 0.3, 1], rtol=0.35)
    assert grid(fl.FedU(graph, lr=0.1), fixed=["lr"]).keys() == {"strength"}
    assert grid(fl.FedU(graph, lr=0.1, local_steps=2), fixed=["lr"])["strength"][-1] <= largest * 0.3
    assert grid(fl.FedU(graph), fixed=["strength"]).keys() == {"lr"}
    assert grid(fl.FedU(fl.Graph.empty(federation.clients))).keys() == {"lr"}
    assert grid(fl.Local()).keys() == {"lr"}
    assert grid(fl.Mocha(graph)).keys() == {"strength"}
    assert grid(fl.NetworkLasso(graph, smoothing=0.1))["strength"][-1] <= 0.1 * 2 / (0.03 * 5 * rho)
    for strength in grid(fl.FedU(graph))["strength"]:
        fl.FedU(graph, strength, lr=0.03)  # none is refused at the middle rate


def test_what_the_method_refuses_is_left_out_and_told(federation, graph):
    made = fl.tune(fl.FedU(graph), federation, LINEAR, {"strength": [0.01, 1e6]}, folds=2, rounds=1)
    assert [each.values for each in made.tried] == [{"strength": 0.01}]
    ((values, reason),) = made.refused
    assert values == {"strength": 1e6}
    assert "too large" in str(reason)
    vary = {"strength": [0.01, 1.9 / (0.03 * 5 * graph.rho)]}  # stable where all work
    sampled = fl.tune(fl.FedU(graph), federation, LINEAR, vary, folds=2, rounds=1, sample=0.2)
    assert "clients a round" in str(sampled.refused[0][1])
    with pytest.raises(fl.InputError, match="every candidate is refused; the first: fedu: strength"):
        fl.tune(fl.FedU(graph), federation, LINEAR, {"strength": [1e6, 2e6]}, folds=2, rounds=1)


def test_what_diverges_is_never_chosen():
    federation = fl.Federation.from_arrays(random_arrays([20, 30], real=True))
    made = fl.tune(fl.Local(), federation, LINEAR, {"lr": [1e6, 0.01]}, folds=2, rounds=60)
    assert made.best.values == {"lr": 0.01}
    assert isinstance(made.tried[0].diverged, DivergedError)
    assert np.isnan(made.tried[0].validation).any()
    with pytest.raises(DivergedError, match="every candidate diverged; the first: training diverged"):
        fl.tune(fl.Local(), federation, LINEAR, {"lr": [1e6]}, folds=2, rounds=60)


def test_a_lower_loss_is_better_where_targets_are_real():
    federation = fl.Federation.from_arrays(random_arrays([20, 30], real=True))
    made = fl.tune(fl.Local(), federation, LINEAR, {"lr": [1e-6, 0.01]}, folds=2, rounds=30)
    assert made.best.validation.mean() == min(each.validation.mean() for each in made.tried)


@pytest.mark.parametrize(
    ("vary", "says"),
    [
        ({"nope": [1]}, "unknown setting of FedU 'nope'"),
        ({"problem": [1]}, "unknown setting of FedU 'problem'"),
        ({}, "there is nothing to try"),
        ({"lr": []}, "there is nothing to try"),
    ],
)
def test_mistakes_are_one_line(federation, graph, vary, says):
    with pytest.raises(fl.InputError, match=says):
        fl.tune(fl.FedU(graph), federation, LINEAR, vary)
    with pytest.raises(fl.InputError, match="give an object"):
        fl.tune(fl.FedU, federation, LINEAR)


# On the command line


def test_the_command_does_what_the_function_does(call):
    words = (*SMALL, "--graph", "known", "--vary", "strength=0,0.3", "--vary", "lr=0.02,0.1", "--folds", "3")
    code, out, err = call("tune", *words, "--rounds", "3", "--seeds", "0,2", "--json")
    assert code == 0, err
    said = json.loads(out)
    assert (said["fields"], said["folds"], said["seeds"]) == (["strength", "lr"], 3, [0, 2])
    values = [each["values"] for each in said["candidates"]]
    assert values == [{"strength": s, "lr": lr} for s in (0, 0.3) for lr in (0.02, 0.1)]
    means = []
    for seed in (0, 2):
        made = fl.data.synthetic(clients=5, rows=16, seed=seed)
        tuned = fl.tune(
            fl.FedU(made.graph), made.federation, LINEAR, {"strength": [0, 0.3], "lr": [0.02, 0.1]},
            folds=3, rounds=3, seed=seed, dtype="float64",
        )  # fmt: skip
        means.append([each.validation for each in tuned.tried])
    for place, each in enumerate(said["candidates"]):
        ours = [score["accuracy"] for score in each["scores"]]
        np.testing.assert_allclose(ours, np.concatenate([means[0][place], means[1][place]]), rtol=1e-9)
        assert each["mean"] == pytest.approx(np.mean(ours))
    best = max(said["candidates"], key=lambda each: each["mean"])
    assert said["best"] == best["values"]


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
    assert (tuned.seed, tuned.evaluate_every) == (3, 1)
    assert f" {tuned.algorithm['strength']:g} " in row
    commands = [line.split(": ", 1)[1] for line in out.splitlines() if ": fedlap " in line]
    assert len(commands) == 3
    assert "--strength 9" not in commands[1]
    by_file = json.loads(call(*shlex.split(commands[0])[1:], "--json")[1])
    assert by_file["experiment"]["model"]["l2"] == tuned.model["l2"]
    again = call(*shlex.split(commands[1])[1:], "--json")
    assert json.loads(again[1])["folder"] == by_file["folder"]
    assert "this run is there already" in again[2]
    code, _, err = call(*shlex.split(commands[2].replace("0-4", "0"))[1:])
    assert code == 0, err
    assert "Laplacian" in call("cite", str(folder), out=False)[1]


def test_what_is_typed_comes_back(call):
    words = (*SMALL, "--vary", "graph={name = 'ring', weight = 0.5},ring", "--local-epochs", "1", "--scarce")
    code, out, err = call("tune", *words, "--vary", "batch=4,all", "--folds", "2", "--rounds", "1", "--json")
    assert code == 0, err
    said = json.loads(out)
    asked = read_experiment(Path(said["tuned"]))
    code, out, err = call(*shlex.split(said["commands"][1])[1:], "--json")
    assert code == 0, err
    made = Experiment.of(json.loads(out)["experiment"])
    assert made.model_copy(update={"content": "", "algorithm": asked.algorithm}) == asked


def test_finished_runs_are_shown_and_stopped_ones_go_on(call, tmp_path):
    words = (*SMALL, "--vary", "lr=0.02,0.1", "--folds", "2", "--json")
    first = json.loads(call("tune", *words, "--rounds", "2")[1])
    _, out, err = call("tune", *words, "--rounds", "2")
    assert "4 of 4 runs are there already" in err
    assert json.loads(out)["candidates"] == first["candidates"]
    _, out, err = call("tune", *words, "--rounds", "5")
    assert "4 of 4 runs go on from round 2" in err
    went_on = json.loads(out)
    _, out, err = call("tune", *words, "--rounds", "5", "--again")
    assert "go on" not in err
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
    assert "3 values of lr × strength, seeds 0,4  round 2/2" in err
    assert "note: lr = 0.1, strength = 3 is left out; algorithm.strength = 3 is too large" in err


def test_the_usual_values_are_tried_where_nothing_is_varied(call):
    code, out, err = call("tune", *SMALL, "--lr", "0.1", "--rounds", "1", "--folds", "2", "--json")
    assert code == 0, err
    tried = [each["values"] for each in json.loads(out)["candidates"]]
    assert tried == [{"strength": value} for value in (0.008, 0.02, 0.08, 0.2, 0.8)]
    assert " --lr 0.1 " in json.loads(out)["commands"][1]
    code, out, err = call("tune", *SMALL, "--algorithm", "fedavg", "--rounds", "1", "--folds", "2", "--json")
    assert [each["values"]["lr"] for each in json.loads(out)["candidates"]] == [0.003, 0.01, 0.03, 0.1]


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
    assert "best: lr = 0.01 (lowest mean, the first in order among equals), by loss" in out
    assert "lr = 9 diverged and is not chosen" in out
    assert err.count("training diverged") == 1
    code, out, err = call("tune", *words, "--vary", "lr=9,10", "--rounds", "30")
    assert code == 1
    assert "every candidate diverged" in out
    assert "to use it" not in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--vary", "lr=abc,1"), "error: with lr = abc: algorithm.lr = 'abc'"),
        (("--vary", "lr"), "error: --vary lr: write field=value,value,…"),
        (("--vary", "nope=1"), "error: unknown field to vary 'nope'"),
        (("--vary", "seed=1,2"), "error: --vary seed=1,2: seeds are not varied but repeated"),
        (("--vary", "fold.number=2,3"), "error: --vary fold.number: tune takes this from --folds"),
        (("--set", "fold.number=3"), "error: --set fold.number: tune takes this from --folds"),
        (("--set", "seed=3"), "error: --set seed=3: tune takes this from --seeds"),
        (("--folds", "1"), "error: Invalid value for '--folds'"),
        (("--folds", "5000"), "error: fold: of 5000 folds number 0 is empty; take fewer folds"),
        (("--lr", "0.1", "--strength", "0"), "error: tune: nothing of fedu is left to choose"),
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


# What is said of scores


def score(accuracy, round=5):
    return Score(round, accuracy, *[accuracy] * 3, *[1 - accuracy] * 4, 0.1, 0.1, None, 0, 0, 0.1)


def told(rows, refused=(), names=("lr",)):
    """A table of candidates with these accuracies, fold by fold."""
    runs = {
        str(values): scores if isinstance(scores, DivergedError) else [[score(s)] for s in scores]
        for values, scores in rows.items()
    }
    runs = {row: [made, made] if isinstance(made, DivergedError) else made for row, made in runs.items()}
    folds = max(map(len, runs.values()))
    return Tuning(
        "made up", [0] * folds, runs, "", names, {str(values): values for values in rows}, ("fedu",),
        folds, tuple((values, "why") for values in refused),
    )  # fmt: skip


def test_the_first_among_equals_is_chosen():
    made = told({(1,): [0.5, 0.7], (2,): [0.6, 0.6], (3,): [0.1, 0.2]})
    assert made.best == "(1,)"
    assert made.runner_up == "(2,)"
    assert [cells[0] for cells in made.rows()] == ["best", "", ""]


def test_noise_is_said():
    sure = told({(1,): [0.5, 0.6, 0.7], (2,): [0.6, 0.7, 0.79], (3,): [0.62, 0.68, 0.8]})
    assert sure.best == "(3,)"
    assert "  against the next, (2,): +0.33 [-4.84, +5.50] points — within noise" in sure.verdict()
    assert any(line.startswith("  1 of 2 others are within noise of the best") for line in sure.verdict())
    same = told({(1,): [0.5, 0.6], (2,): [0.5, 0.6]})
    assert "  against the next, (2,): the same" in same.verdict()


def edges(rows, **more):
    return [line for line in told(rows, **more).verdict() if line.startswith("the best")]


def test_the_edge_of_the_grid_is_said():
    rising = {(0.1,): [0.1, 0.2], (0.2,): [0.2, 0.3], (0.3,): [0.3, 0.4]}
    assert edges(rising) == ["the best lr is the largest tried, so the best may lie beyond; try larger ones"]
    falling = {(0.1,): [0.4, 0.4], (0.2,): [0.2, 0.3], (0.3,): [0.3, 0.3]}
    assert edges(falling) == [
        "the best lr is the smallest tried, so the best may lie beyond; try smaller ones"
    ]
    assert edges({(0.1,): [0.1, 0.2], (0.2,): [0.4, 0.5], (0.3,): [0.3, 0.4]}) == []
    assert edges({(0,): [0.4, 0.4], (0.2,): [0.2, 0.3], (0.3,): [0.3, 0.3]}) == []  # nothing is below zero
    assert edges({(0.1,): [0.1, 0.2], (0.2,): [0.4, 0.5]}) == []  # two are no range
    assert edges({("a",): [0.1, 0.2], ("b",): [0.2, 0.3], ("c",): [0.4, 0.5]}) == []
    level = {(0.1,): [0.1, 0.2], (0.2,): [0.3, 0.4], (0.3,): [0.3, 0.4]}
    assert edges(level) == []  # the first among equals lies within


def test_an_edge_that_is_the_method_s_own_is_said_to_be_so():
    rows = {(1, 0.1): [0.1, 0.2], (1, 0.2): [0.3, 0.4], (2, 0.1): [0.1, 0.1], (2, 0.2): [0.2, 0.2]}
    made = edges(rows, refused=[(1, 0.3), (2, 0.3)], names=("lr", "strength"))
    assert made == [
        "the best strength is the largest that was not refused; larger ones may need other settings"
    ]
    rows |= {(2, 0.3): [0.1, 0.1]}  # with another lr it is not
    assert edges(rows, refused=[(1, 0.3)], names=("lr", "strength")) == made


def test_what_diverged_is_told_and_not_ranked():
    made = told({(1,): [0.1, 0.2], (2,): DivergedError("why")})
    assert made.best == "(1,)"
    assert made.verdict()[-1] == "(2,) diverged and is not chosen"
    assert made.as_dict()["candidates"][1] == {"values": {"lr": 2}, "mean": None, "scores": [None, None]}
    alone = told({(1,): DivergedError("why")})
    assert alone.best is None
    assert alone.verdict() == ["every candidate diverged, so none is chosen; try smaller rates"]
    assert "diverged" in alone.markdown()


def test_the_order_of_clients_changes_nothing(federation):
    graph = fl.Graph.from_matrix(random_weights(federation.clients), federation.clients)
    vary = {"strength": [0.01, 0.1]}
    turned = federation.reordered(federation.clients[::-1])
    one, other = (
        fl.tune(fl.FedU(graph), each, LINEAR, vary, folds=3, rounds=5, dtype="float64")
        for each in (federation, turned)
    )
    for a, b in zip(one.tried, other.tried, strict=True):
        np.testing.assert_allclose(a.validation, b.validation, rtol=1e-12)
        for s, t in zip(a.scores, b.scores, strict=True):
            assert s.loss == pytest.approx(t.loss, rel=1e-9)
