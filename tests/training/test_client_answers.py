"""Answers per client: scores alone and with the method, gains, neighbours and coefficients."""

import numpy as np
import pytest
import torch

import fedlap as fl
from fedlap.training.client_answers import list_neighbours

SETTINGS = {"rounds": 6, "seed": 3, "sample": 0.5, "batch": 8, "dtype": "float64"}


@pytest.fixture(scope="module")
def radon():
    return fl.data.load_with_graph("radon", seed=1)


@pytest.fixture(scope="module")
def result(radon):
    federation, graph = radon
    return fl.fit(fl.FedU(graph, strength=0.5, lr=0.05), federation, fl.models.linear(), **SETTINGS)


def test_alone_is_training_without_the_others(radon, result):
    federation, _ = radon
    local = fl.fit(fl.Local(lr=0.05), federation, fl.models.linear(), **SETTINGS)
    frame = result.clients
    assert frame["rmse"].mean() == pytest.approx(result.scores[-1].rmse_mean, rel=1e-14)
    assert frame["rmse_alone"].mean() == pytest.approx(local.scores[-1].rmse_mean, rel=1e-14)
    np.testing.assert_array_equal(frame["gain"], frame["rmse_alone"] - frame["rmse"])


def test_every_client_has_a_row_in_order(radon, result):
    federation, _ = radon
    frame = result.clients
    assert list(frame["client"]) == list(federation.clients)
    assert list(frame["train_rows"]) == federation.train.count.tolist()
    assert list(frame["test_rows"]) == federation.test.count.tolist()
    assert frame["rmse"].isna().tolist() == (federation.test.count == 0).tolist()


def test_accuracies_gain_upwards():
    federation = fl.data.load("digits", seed=0)
    method = fl.FedU(fl.Graph.complete(federation.clients), strength=0.01)
    result = fl.fit(method, federation, fl.models.mlp((5,)), rounds=3)
    frame = result.clients
    assert frame["accuracy"].mean() == pytest.approx(result.scores[-1].accuracy_mean, abs=1e-12)
    np.testing.assert_array_equal(frame["gain"], frame["accuracy"] - frame["accuracy_alone"])
    assert "intercept" not in frame  # a hidden layer has no coefficients


def test_coefficients_predict_raw_rows(result):
    frame = result.clients.set_index("client")
    for floor in (0.0, 1.0):
        predicted = float(result.predict("Aitkin", np.array([[floor]])))
        line = frame.loc["Aitkin"]
        assert line["floor"] * floor + line["intercept"] == pytest.approx(predicted, abs=1e-9)
    assert (frame["floor_error"] > 0).all()


def test_errors_are_absent_where_they_are_not_known(radon):
    federation, _ = radon
    result = fl.fit(fl.FedAvg(), federation, fl.models.linear(), rounds=2)
    assert "floor" in result.clients
    assert "floor_error" not in result.clients
    assert "FedAvg" in result.answers.coefficients.remark
    assert "neighbours" not in result.clients


def test_reordered_and_resumed_runs_answer_in_the_order_of_their_clients(radon, result):
    federation, _ = radon
    turned = federation.reorder(federation.clients[::-1])
    resumed = fl.fit(result.algorithm, turned, fl.models.linear(), **{**SETTINGS, "rounds": 7}, resume=result)
    whole = fl.fit(result.algorithm, federation, fl.models.linear(), **{**SETTINGS, "rounds": 7})
    there, here = resumed.clients.set_index("client"), whole.clients.set_index("client")
    assert list(there.index) == list(turned.clients)
    columns = ["rmse_alone", "rmse", "gain", "floor", "intercept"]
    np.testing.assert_allclose(
        there.loc[here.index, columns].to_numpy(float), here[columns].to_numpy(float), rtol=1e-9
    )
    assert there.loc["Aitkin", "neighbours"] == here.loc["Aitkin", "neighbours"]


def test_the_heaviest_neighbours_come_first():
    names = tuple("abcde")
    edges = [("a", "b", 0.5), ("a", "c", 2.0), ("a", "d", 1.0), ("a", "e", 1.0)]
    graph = fl.Graph.from_edges(edges, names)
    assert list_neighbours(graph, names)[0] == ("c", "d", "e")
    assert list_neighbours(None, names) == [()] * 5
    star = fl.Graph.star(names, server=True)
    assert list_neighbours(star, names)[0] == ()  # a server is no client


def test_the_models_of_the_run_stay_as_they_are(result):
    before = result.models.clone()
    _ = result.clients
    assert torch.equal(result.models, before)
