"""Synthetic federations of any size: the same clients in every shard, and alike along edges."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedlap as fl
from fedlap.data import LargeSynthetic
from fedlap.data.large_synthetic import CLIENTS_PER_DRAW, split_range
from fedlap.graph.spectrum import compute_rho
from property_settings import law

STRUCTURES = ("clusters", "ring", "geometric")
CLIENTS = 2 * CLIENTS_PER_DRAW + 300


def build_settings(structure, **settings):
    return LargeSynthetic(
        **{"clients": CLIENTS, "structure": structure, "rows": 3, "test_rows": 1, **settings}
    )


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_any_shard_has_the_rows_of_the_whole(structure, task):
    settings = build_settings(structure, task=task)
    whole = settings.generate()
    for ids in (range(0, 7), range(1000, 2100), range(2047, 2049), range(2340, CLIENTS)):
        shard = settings.generate(ids)
        assert shard.clients == whole.clients[ids.start : ids.stop]
        for part, of in ((shard.train, whole.train), (shard.test, whole.test)):
            rows = slice(int(of.first[ids.start]), int(of.first[ids.stop - 1] + of.count[ids.stop - 1]))
            assert torch.equal(part.count, of.count[ids.start : ids.stop])
            assert torch.equal(part.store, of.store[rows])
            assert torch.equal(part.y, of.y[rows])


def test_seeds_and_clients_differ():
    first, other = (build_settings("ring", seed=seed).generate(range(2)) for seed in (0, 1))
    rows = [federation.train.client(k)[0][0] for federation in (first, other) for k in range(2)]
    assert len({tuple(row.tolist()) for row in rows}) == 4


def test_the_counts_of_rows_lie_in_their_range():
    federation = build_settings("clusters", rows=20, test_rows=5).generate(range(1024))
    assert int(federation.train.count.min()) >= 10
    assert int(federation.train.count.max()) <= 30
    assert abs(float(federation.train.count.double().mean()) - 20) < 1  # standard error 0.2
    assert torch.equal(federation.test.count, torch.full((1024,), 5))


@pytest.mark.parametrize("structure", STRUCTURES)
def test_joined_clients_have_the_wanted_correlation(structure):
    settings = build_settings(structure, features=300, alike=0.8)
    W = settings.generate_models(range(CLIENTS_PER_DRAW))
    edges = settings.join_clients(range(CLIENTS_PER_DRAW))[:, :CLIENTS_PER_DRAW].tocoo()
    variance = W.square().mean()
    assert math.isclose(float(variance), settings.size**2 / settings.features, rel_tol=0.2)
    correlation = (W[edges.row] * W[edges.col]).mean() / variance
    assert math.isclose(float(correlation), 0.8, abs_tol=0.05)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_graph_is_symmetric_with_the_wanted_degree_and_rho(structure):
    settings = build_settings(structure, degree=6)
    graph = settings.build_graph()
    matrix = graph.weights.matrix()
    assert (matrix != matrix.T).nnz == 0
    assert not matrix.diagonal().any()
    assert set(matrix.data) == {1.0}
    assert graph.rho == pytest.approx(compute_rho(graph.weights), rel=1e-3)
    degrees = np.diff(matrix.indptr)
    if structure == "geometric":
        assert abs(degrees[1000:1300].mean() - 6) < 0.3  # standard error 0.1, and the edge of the plane
    else:
        assert np.median(degrees) == degrees.max() == 6


@law
@given(st.sampled_from(STRUCTURES), st.integers(1, 60), st.integers(0, 8), st.data())
def test_any_range_has_the_edges_of_the_whole(structure, clients, degree, data):
    if structure != "geometric":
        degree = min(degree, clients - 1)
        degree -= degree % 2 if structure == "ring" else 0
    settings = LargeSynthetic(clients=clients, structure=structure, degree=degree)
    start = data.draw(st.integers(0, clients - 1))
    ids = range(start, data.draw(st.integers(start + 1, clients)))
    whole = settings.join_clients(range(clients)).toarray()
    assert np.array_equal(settings.join_clients(ids).toarray(), whole[ids.start : ids.stop])
    assert np.array_equal(whole, whole.T)
    assert np.array_equal(settings.build_graph().weights.matrix().toarray(), whole)


def test_ranges_are_split_at_multiples():
    assert split_range(range(3, 9), 4) == [range(3, 4), range(4, 8), range(8, 9)]
    assert split_range(range(4, 8), 4) == [range(4, 8)]


def test_the_graph_is_worth_something():
    """FedU on the graph predicts better than every client alone, and than one model for all."""
    settings = build_settings("geometric", rows=10, test_rows=20, clients=400, alike=0.97)
    federation, graph = settings.generate(), settings.build_graph()
    fit = {"rounds": 60, "evaluate_every": 0}
    methods = (fl.FedU(graph, strength=0.2, lr=0.1), fl.Local(lr=0.1), fl.FedAvg(lr=0.1))
    fedu, local, fedavg = (
        fl.fit(method, federation, fl.models.linear(), **fit).scores[-1].accuracy for method in methods
    )
    assert fedu > max(local, fedavg) + 0.03


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alike": 1}, "alike = 1; expected a number in [0, 1)"),
        ({"degree": 9, "clients": 9}, "degree = 9; expected less than 9, the number of clients"),
        ({"degree": 3, "structure": "ring"}, "degree = 3; a ring needs an even number"),
        ({"clients": 0}, "clients = 0; expected an integer"),
        ({"labels": 1}, "labels = 1; expected an integer"),
    ],
)
def test_invalid_settings_are_refused(settings, message):
    with pytest.raises(fl.InputError) as error:
        LargeSynthetic(**settings)
    assert message in str(error.value)


@pytest.mark.parametrize("ids", [range(0, 0), range(5, 12), range(0, 4, 2)])
def test_ranges_outside_the_federation_are_refused(ids):
    with pytest.raises(fl.InputError, match=r"within range\(0, 11\)"):
        LargeSynthetic(clients=11).generate(ids)
