"""The benchmarks of passed steps: their forms of the rule, and the differences that they report."""

import pytest
import torch
from benchmarks import passing
from benchmarks.passing_variants import LEAKS, Variant, correlate, leave_one_out

import fedlap as fl
from random_inputs import random_arrays, random_weights

NAMES = [str(k) for k in range(7)]
MODEL = fl.models.linear(l2=0.02)


@pytest.fixture(scope="module")
def federation():
    return fl.Federation.from_arrays(random_arrays([7, 23, 5, 12, 41, 9, 2]), test_share=0, scale="none")


def build_graphs(clients):
    return {
        "complete": fl.Graph.complete(clients),
        "ring": fl.Graph.ring(clients),
        "random": fl.Graph.from_matrix(random_weights(clients), clients),
    }


def train(method, federation):
    schedule = {"rounds": 12, "batch": 4, "sample": 0.45, "dtype": "float64", "evaluate_every": 0}
    return fl.fit(method, federation, MODEL, **schedule).models


@pytest.mark.parametrize("name", ["complete", "ring", "random"])
def test_without_its_settings_a_form_is_fedu_passing(name, federation):
    graph = build_graphs(federation.clients)[name]
    expected = train(fl.FedUPassing(graph, 0.3, 0.05), federation)
    assert (train(Variant(graph, 0.3, 0.05), federation) - expected).abs().max() < 1e-12
    for settings in ({"leak": 3.0}, {"momentum": 0.3}, {"reach": 1.0}, {"learns_leak": True}):
        assert (train(Variant(graph, 0.3, 0.05, **settings), federation) - expected).abs().max() > 1e-4


def test_errors_of_steps_that_are_left_out():
    """Each sampled step is estimated from the other sampled ones; the closed form needs one inverse."""
    R = correlate(torch.from_numpy(random_weights(NAMES)), 0.3)
    ids, d = torch.tensor([4, 0, 3, 6]), torch.randn(4, 5, dtype=torch.float64)
    total = 0.0
    for place in range(4):
        rest = [other for other in range(4) if other != place]
        others = R[ids[rest]][:, ids[rest]]
        estimate = R[ids[place], ids[rest]] @ torch.linalg.solve(others, d[rest])
        total += float((d[place] - estimate).square().sum())
    assert leave_one_out(R, ids, d).item() == pytest.approx(total, rel=1e-10)


@pytest.mark.parametrize("true", LEAKS)
def test_the_errors_find_the_leak_of_steps_that_have_one(true):
    a = torch.ones(30, 30, dtype=torch.float64).fill_diagonal_(0)
    draw = torch.Generator().manual_seed(0)
    noise = torch.randn(30, 20_000, dtype=torch.float64, generator=draw)
    d, ids = torch.linalg.cholesky(correlate(a, true)) @ noise, torch.arange(3)
    errors = [leave_one_out(correlate(a, leak), ids, d[:3]).item() for leak in LEAKS]
    assert LEAKS[errors.index(min(errors))] == true


@pytest.mark.parametrize(("metric", "sign"), [("accuracy", 1), ("rmse", -1)])
def test_differences_are_positive_where_fedu_passing_is_better(metric, sign):
    case = passing.list_cases()["ring"]
    lines = {
        ("ring", name, seed): {"metric": metric, "score": 10 + sign * gain + 0.01 * seed * (name == "fedu")}
        for seed in range(3)
        for name, gain in (("fedu-passing", 1.0), ("fedu", 0.0), ("mocha", 2.0))
    }
    found = {other: pair.mean for _, other, pair in passing.list_differences({"ring": case}, range(3), lines)}
    assert found == {"fedu": pytest.approx(1 - sign * 0.01), "mocha": pytest.approx(-1)}
