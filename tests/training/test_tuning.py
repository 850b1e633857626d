"""Tuning: what it chooses, that no test row has a say in it, and how candidates are trained."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import fedlap as fl
from fedlap.errors import DivergedError
from fedlap.training import packing, tuning
from fedlap.training.jobs import Job, bind_algorithm
from fedlap.training.packing import SizedJob
from fedlap.training.schedule import Schedule
from fedlap.training.scores import Score
from fedlap.training.tuning import default_grid
from random_inputs import random_arrays, random_weights

LINEAR = fl.models.linear()


def around(smoothness, seed):
    """Clients around a ring whose true models are alike, or not, and that ring."""
    problem = fl.data.synthetic(clients=20, smoothness=smoothness, test_rows=0, seed=seed)
    return problem.federation, problem.graph


@pytest.mark.parametrize(("smoothness", "alike"), [(10.0, True), (0.0, False)])
@pytest.mark.parametrize("seed", [0, 1])
def test_strength_is_chosen_where_neighbours_are_alike_and_not_where_they_are_strangers(
    smoothness, alike, seed
):
    federation, graph = around(smoothness, seed)
    vary = {"strength": [0.0, 0.001, 0.3, 0.9]}
    tuned = fl.tune(fl.FedU(graph, lr=0.1), federation, LINEAR, vary, rounds=25, seed=seed)
    chosen = tuned.best.values["strength"]
    assert (chosen >= 0.3) if alike else (chosen <= 0.001)
    assert tuned.algorithm.strength == chosen
    means = [candidate.validation.mean() for candidate in tuned.tried]
    assert max(means) - min(means) > 0.03


def other_tests(federation, seed):
    """The same training rows with other test rows."""
    names = federation.clients
    train = {name: federation.train.client(k) for k, name in enumerate(names)}
    rng = np.random.default_rng(seed)
    x, y = 100 * rng.normal(size=(7, 4)), rng.integers(0, 3, 7)
    return fl.Federation.from_arrays(train, test=dict.fromkeys(names, (x, y)), labels=3).standardize("pooled")


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


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_candidates_together_are_runs_by_themselves(name, federation, graph):
    make, vary = METHODS[name]
    how = {"rounds": 3, "batch": 5, "dtype": "float64", "seed": 2}
    tuned = fl.tune(make(graph), federation, LINEAR, vary, folds=2, **how)
    assert [list(candidate.values) for candidate in tuned.tried] == [list(vary)] * len(tuned.tried)
    for candidate in tuned.tried:
        for held_out, score in enumerate(candidate.scores):
            assert isinstance(score, Score)
            fold = federation.fold(2, held_out, seed=2)
            alone = fl.fit(candidate.algorithm, fold, LINEAR, engine="one_by_one", **how).scores[-1]
            for field in ("accuracy", "loss", "objective", "train_loss", "loss_worst"):
                assert getattr(score, field) == pytest.approx(getattr(alone, field), rel=1e-9), field


def test_all_folds_and_candidates_are_one_stack(federation, graph, monkeypatch):
    sizes = []
    fit_all = tuning.fit_all
    monkeypatch.setattr(
        tuning, "fit_all", lambda jobs, *rest: (sizes.append(len(jobs)), fit_all(jobs, *rest))[1]
    )
    fl.tune(fl.FedU(graph), federation, LINEAR, {"strength": [0.0, 0.1], "lr": [0.1, 0.2]}, folds=3, rounds=1)
    fl.tune(fl.Mocha(graph), federation, LINEAR, {"strength": [0.01, 0.1]}, folds=2, rounds=1)
    fl.tune(fl.L2GD(), federation, LINEAR, {"strength": [0.01, 0.1]}, folds=2, rounds=1)  # is not steady
    assert sizes == [12, 4, 1, 1, 1, 1]


def test_rows_that_runs_share_are_counted_once(federation, graph, monkeypatch):
    schedule = Schedule()
    wide = fl.Federation.from_arrays(random_arrays([50, 60], features=300), labels=3, scale="none")
    model = bind_algorithm(fl.FedAvg(), wide, LINEAR)[1]
    shared = [SizedJob(Job(fl.FedAvg(), wide, LINEAR), model, schedule) for _ in range(6)]
    apart = [replace(run, job=replace(run.job, federation=replace(wide))) for run in shared]
    room = shared[0].estimate_data_bytes() + 6 * shared[0].estimate_model_bytes()
    monkeypatch.setattr(packing, "_measure_free_memory", lambda _: room / packing.STACK_MEMORY_SHARE)
    assert packing.pack_jobs(shared) == [[0, 1, 2, 3, 4, 5]]
    assert len(packing.pack_jobs(apart)) > 1
    monkeypatch.setattr(packing, "_measure_free_memory", lambda _: 0)
    assert len(packing.pack_jobs(shared)) == 6


def test_models_at_work_fit_into_a_cpus_cache(federation, graph, monkeypatch):
    def runs(sample):
        model = bind_algorithm(fl.FedAvg(), federation, LINEAR)[1]
        job, schedule = Job(fl.FedAvg(), federation, LINEAR), Schedule(sample=sample)
        return [SizedJob(job, model, schedule) for _ in range(6)]

    threads = torch.get_num_threads()
    cached = 2 * runs(1.0)[0].count_updated_parameters() // threads + 1
    monkeypatch.setattr(packing, "CACHED_PARAMETERS_PER_THREAD", cached)
    assert packing.pack_jobs(runs(1.0)) == [[0, 1], [2, 3], [4, 5]]
    assert packing.pack_jobs(runs(0.5)) == [[0, 1, 2], [3, 4, 5]]
    monkeypatch.setattr(packing, "CACHED_PARAMETERS_PER_THREAD", 0)
    assert len(packing.pack_jobs(runs(0.5))) == 6


def test_graphs_and_anything_else_of_a_method_can_be_tried(federation, graph):
    vary = {"graph": [graph, fl.Graph.ring(federation.clients)], "neighbours": ["all", "sampled"]}
    tuned = fl.tune(fl.FedU(graph, 0.01), federation, LINEAR, vary, folds=2, rounds=1)
    assert [candidate.values["neighbours"] for candidate in tuned.tried] == ["all", "sampled"] * 2


def test_the_usual_grid(graph, federation):
    rho = graph.rho
    grid = default_grid(fl.FedU(graph, local_steps=2))
    assert grid["lr"] == [0.003, 0.01, 0.03, 0.1]
    largest = 2 / (0.03 * 2 * rho)
    assert largest / 2 < grid["strength"][-1] <= largest
    assert all(float(f"{value:.0e}") == value for value in grid["strength"])
    shares = np.array(grid["strength"]) / grid["strength"][-1]
    np.testing.assert_allclose(shares, [0.01, 0.03, 0.1, 0.3, 1], rtol=0.35)
    assert default_grid(fl.FedU(graph, lr=0.1), fixed=["lr"]).keys() == {"strength"}
    assert default_grid(fl.FedU(graph, lr=0.1, local_steps=2), fixed=["lr"])["strength"][-1] <= largest * 0.3
    assert default_grid(fl.FedU(graph), fixed=["strength"]).keys() == {"lr"}
    assert default_grid(fl.FedU(fl.Graph.empty(federation.clients))).keys() == {"lr"}
    assert default_grid(fl.Local()).keys() == {"lr"}
    assert default_grid(fl.Mocha(graph)).keys() == {"strength"}
    assert default_grid(fl.NetworkLasso(graph, smoothing=0.1))["strength"][-1] <= 0.1 * 2 / (0.03 * 5 * rho)
    for strength in default_grid(fl.FedU(graph))["strength"]:
        fl.FedU(graph, strength, lr=0.03)  # none is refused at the middle rate


def test_what_the_method_refuses_is_left_out_and_told(federation, graph):
    tuned = fl.tune(fl.FedU(graph), federation, LINEAR, {"strength": [0.01, 1e6]}, folds=2, rounds=1)
    assert [candidate.values for candidate in tuned.tried] == [{"strength": 0.01}]
    ((values, reason),) = tuned.refused
    assert values == {"strength": 1e6}
    assert "too large" in str(reason)
    vary = {"strength": [0.01, 1.9 / (0.03 * 5 * graph.rho)]}  # stable where all work
    sampled = fl.tune(fl.FedU(graph), federation, LINEAR, vary, folds=2, rounds=1, sample=0.2)
    assert "clients per round" in str(sampled.refused[0][1])
    with pytest.raises(fl.InputError, match="every candidate is invalid; the first: fedu: strength"):
        fl.tune(fl.FedU(graph), federation, LINEAR, {"strength": [1e6, 2e6]}, folds=2, rounds=1)


def test_what_diverges_is_never_chosen():
    federation = fl.Federation.from_arrays(random_arrays([20, 30], real=True), scale="none")
    tuned = fl.tune(fl.Local(), federation, LINEAR, {"lr": [1e6, 0.01]}, folds=2, rounds=60)
    assert tuned.best.values == {"lr": 0.01}
    assert isinstance(tuned.tried[0].diverged, DivergedError)
    assert np.isnan(tuned.tried[0].validation).any()
    with pytest.raises(DivergedError, match="every candidate diverged; the first: training diverged"):
        fl.tune(fl.Local(), federation, LINEAR, {"lr": [1e6]}, folds=2, rounds=60)


def test_a_lower_loss_is_better_where_targets_are_real():
    federation = fl.Federation.from_arrays(random_arrays([20, 30], real=True), scale="none")
    tuned = fl.tune(fl.Local(), federation, LINEAR, {"lr": [1e-6, 0.01]}, folds=2, rounds=30)
    assert tuned.best.validation.mean() == min(candidate.validation.mean() for candidate in tuned.tried)


@pytest.mark.parametrize(
    ("vary", "says"),
    [
        ({"nope": [1]}, "unknown setting of FedU 'nope'"),
        ({"problem": [1]}, "unknown setting of FedU 'problem'"),
        ({}, "vary has no values"),
        ({"lr": []}, "vary has no values"),
    ],
)
def test_mistakes_are_one_line(federation, graph, vary, says):
    with pytest.raises(fl.InputError, match=says):
        fl.tune(fl.FedU(graph), federation, LINEAR, vary)
    with pytest.raises(fl.InputError, match="pass an instance"):
        fl.tune(fl.FedU, federation, LINEAR)


def test_the_order_of_clients_changes_nothing(federation):
    graph = fl.Graph.from_matrix(random_weights(federation.clients), federation.clients)
    vary = {"strength": [0.01, 0.1]}
    turned = federation.reorder(federation.clients[::-1])
    one, other = (
        fl.tune(fl.FedU(graph), data, LINEAR, vary, folds=3, rounds=5, dtype="float64")
        for data in (federation, turned)
    )
    for a, b in zip(one.tried, other.tried, strict=True):
        np.testing.assert_allclose(a.validation, b.validation, rtol=1e-12)
        for s, t in zip(a.scores, b.scores, strict=True):
            assert s.loss == pytest.approx(t.loss, rel=1e-9)


def test_fields_that_training_sets_are_no_settings(federation):
    with pytest.raises(fl.InputError, match="unknown setting of FedPer '_head'") as error:
        fl.tune(fl.FedPer(), federation, fl.models.mlp((3,)), {"_head": [0]}, rounds=1)
    assert "_head" not in str(error.value).partition("known:")[2]
