"""fl.fit against the paper's algorithms written as loops."""

import numpy as np
import pytest
import torch

import fedlap as fl
import reference
from random_inputs import random_arrays, random_weights

COUNTS = [7, 23, 5, 12, 41, 9, 2]
LABELS, L2, LR, ETA, SEED = 3, 0.02, 0.05, 0.3, 11


@pytest.fixture(scope="module")
def problem():
    arrays = random_arrays(COUNTS, labels=LABELS)
    federation = fl.Federation.from_arrays(arrays, test_share=0, labels=LABELS, scale="none")
    matrix = random_weights(federation.clients)
    pairs = {
        (k, o): matrix[i, j]
        for i, k in enumerate(federation.clients)
        for j, o in enumerate(federation.clients)
        if matrix[i, j]
    }
    start = np.random.default_rng(1).normal(size=4 * LABELS + LABELS) / 3
    return arrays, federation, fl.Graph.from_matrix(matrix, federation.clients), pairs, start


def train_models(algorithm, federation, start, batch, sample=1.0):
    return fl.fit(
        algorithm,
        federation,
        fl.models.linear(l2=L2),
        rounds=20,
        batch=batch,
        sample=sample,
        seed=SEED,
        start=torch.from_numpy(start),
        dtype="float64",
    ).models.numpy()


@pytest.mark.parametrize("batch", [4, 8, "all"])
@pytest.mark.parametrize("work", [{"steps": 3}, {"epochs": 2}], ids=["steps", "epochs"])
@pytest.mark.parametrize("neighbours", ["all", "sampled"])
@pytest.mark.parametrize("sample", [0.45, 1.0])
def test_fedu_is_algorithm_1(problem, sample, neighbours, work, batch):
    arrays, federation, graph, pairs, start = problem
    fields = {f"local_{kind}": number for kind, number in work.items()}
    method = fl.FedU(graph, strength=ETA, lr=LR, neighbours=neighbours, **fields)
    plain = reference.fedu(
        arrays, pairs, start, rounds=20, lr=LR, eta=ETA, batch=batch, share=sample, seed=SEED,
        neighbours=neighbours, labels=LABELS, l2=L2, work=work,
    )  # fmt: skip
    assert np.abs(train_models(method, federation, start, batch, sample) - plain).max() < 1e-9


@pytest.mark.parametrize("batch", [4, "all"])
@pytest.mark.parametrize("work", [{"steps": 3}, {"epochs": 2}], ids=["steps", "epochs"])
def test_dfedu_is_algorithm_2(problem, work, batch):
    arrays, federation, graph, pairs, start = problem
    fields = {f"local_{kind}": number for kind, number in work.items()}
    plain = reference.dfedu(
        arrays,
        pairs,
        start,
        rounds=20,
        lr=LR,
        eta=ETA,
        batch=batch,
        seed=SEED,
        labels=LABELS,
        l2=L2,
        work=work,
    )
    method = fl.DFedU(graph, strength=ETA, lr=LR, **fields)
    assert np.abs(train_models(method, federation, start, batch) - plain).max() < 1e-9


@pytest.mark.parametrize("batch", [4, "all"])
@pytest.mark.parametrize("work", [{"steps": 3}, {"epochs": 2}], ids=["steps", "epochs"])
@pytest.mark.parametrize("sample", [0.5, 1.0])  # half of seven clients are four
@pytest.mark.parametrize(("method", "plain"), [(fl.Local, reference.local), (fl.Global, reference.everybody)])
def test_baselines_are_what_they_say(problem, method, plain, sample, work, batch):
    arrays, federation, _, _, start = problem
    fields = {f"local_{kind}": number for kind, number in work.items()}
    expected = plain(
        arrays, start, rounds=20, lr=LR, batch=batch, share=sample, seed=SEED, labels=LABELS, l2=L2, work=work
    )
    found = train_models(method(lr=LR, **fields), federation, start, batch, sample)
    assert np.abs(found - expected).max() < 1e-9


@pytest.mark.parametrize("neighbours", ["all", "sampled"])
@pytest.mark.parametrize("sample", [0.45, 1.0])
def test_a_server_vertex_is_a_vertex_without_loss(problem, sample, neighbours):
    arrays, federation, _, _, start = problem
    star = fl.Graph.star(federation.clients, 0.8, server=True)
    pairs = {pair: 0.8 for k in arrays for pair in ((k, "server"), ("server", k))}
    plain = reference.fedu(
        arrays, pairs, start, rounds=20, lr=LR, eta=ETA, batch=4, share=sample, seed=SEED,
        neighbours=neighbours, labels=LABELS, l2=L2, work={"steps": 3}, server="server",
    )  # fmt: skip
    method = fl.FedU(star, strength=ETA, lr=LR, local_steps=3, neighbours=neighbours)
    assert np.abs(train_models(method, federation, start, 4, sample) - plain[:-1]).max() < 1e-9


def test_fedu_on_the_complete_graph_is_mean_regularised(problem):
    """MR-MTL: the penalty (λ/2) Σ_k ‖w_k − w̄‖², and a step along its gradient, with η = λ/N."""
    clients, strength = problem[1].clients, 0.7
    method = fl.FedU(fl.Graph.complete(clients), strength=strength / len(clients), lr=LR, local_steps=2)
    W = torch.randn(len(clients), 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    server, apart = method.init_server(W), W - W.mean(0)
    assert float(method.penalty(server, None)) == pytest.approx(strength / 2 * float(apart.square().sum()))
    mixed = method.merge(server, torch.arange(len(clients)), W.clone()).models.values
    assert (mixed - (W - LR * 2 * strength * apart)).abs().max() < 1e-12


def test_the_reference_learns(problem):
    """The comparison above would be empty if nothing moved."""
    _, federation, graph, _, start = problem
    moved = train_models(fl.FedU(graph, strength=ETA, lr=LR), federation, start, 8) - start
    assert np.abs(moved).max(axis=1).min() > 0.05
