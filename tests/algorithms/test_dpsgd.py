"""D-PSGD: as its paper has it, and what is exactly true."""

import numpy as np
import pytest
import torch

import fedlap as fl
from related_methods import (
    LR,
    ROUNDS,
    a_start,
    distance,
    either_work,
    fields,
    given_arrays,  # noqa: F401 — a fixture
    given_federation,  # noqa: F401 — a fixture
    given_graph,  # noqa: F401 — a fixture
    slope,
    steps_of,
    train_method,
)


def metropolis(a):
    linked, n = a > 0, len(a)
    degree = linked.sum(1)
    m = np.array([[linked[i, j] / (1 + max(degree[i], degree[j])) for j in range(n)] for i in range(n)])
    return m + np.diag(1 - m.sum(1))


def plain_dpsgd(arrays, m, start, work):
    steps = steps_of(arrays, work)
    x = np.stack([start] * len(arrays))
    for t in range(1, ROUNDS + 1):
        half = m @ x
        for place, k in enumerate(arrays):
            y = x[place].copy()
            for batch in steps(k, t):
                y = y - LR * slope(y, batch)
            half[place] += y - x[place]
        x = half
    return x


@either_work
def test_dpsgd_is_its_algorithm_1(arrays, federation, graph, work):
    start, m = a_start(), metropolis(graph.weights.matrix().toarray())
    found = train_method(fl.DPSGD(graph, **fields(work)), federation, start=start)
    assert distance(found.models, plain_dpsgd(arrays, m, start, work)) < 1e-9


def test_one_step_descends_from_the_average_along_gradients_at_the_old_models(arrays, federation, graph):
    """R = 1 and all rows in the mini-batch: the paper's x_i ← Σ_j W_ij x_j − γ ∇F_i(x_i)."""
    m, start = metropolis(graph.weights.matrix().toarray()), torch.randn(6, 15, dtype=torch.float64)
    how = {"rounds": 1, "batch": "all", "start": start}
    found = train_method(fl.DPSGD(graph, lr=LR, local_steps=1), federation, **how)
    x = start.numpy()
    expected = m @ x - LR * np.stack([slope(w, rows) for w, rows in zip(x, arrays.values(), strict=True)])
    assert distance(found.models, expected) < 1e-12


def test_the_graph_s_own_weights(arrays, federation, graph):
    a = graph.weights.matrix().toarray()
    a = a / (1.1 * a.sum(1).max())
    scaled = fl.Graph.from_matrix(a, federation.clients)
    found = train_method(fl.DPSGD(scaled, "graph", lr=LR, local_steps=3), federation, start=a_start())
    m = a + np.diag(1 - a.sum(1))
    assert distance(found.models, plain_dpsgd(arrays, m, a_start(), {"steps": 3})) < 1e-9
    with pytest.raises(fl.InputError, match=r"dpsgd: weights = 'graph', whose weights sum to .* at most 1"):
        fl.DPSGD(graph, "graph")


def test_on_the_complete_graph_metropolis_weights_give_the_mean(federation):
    """M = 11ᵀ/N; from one common start, the first round is local work alone."""
    method = fl.DPSGD(fl.Graph.complete(federation.clients), lr=LR)
    first = train_method(method, federation, rounds=1, start=a_start())
    alone = train_method(fl.Local(lr=LR), federation, rounds=1, start=a_start())
    assert distance(first.models, alone.models) < 1e-12
    m = metropolis(np.ones((6, 6)) - np.eye(6))
    assert distance(m, np.full((6, 6), 1 / 6)) < 1e-15
    assert distance(method.gossip.weights.matrix().toarray(), m - np.diag(np.diag(m))) < 1e-15


def test_without_edges_every_client_trains_alone(federation):
    method = fl.DPSGD(fl.Graph.empty(federation.clients), lr=LR)
    found, alone = (train_method(m, federation) for m in (method, fl.Local(lr=LR)))
    assert distance(found.models, alone.models) < 1e-12


def test_peers_agree_with_small_steps(federation, graph):
    """The disagreement is proportional to the length of a step, after equally long ways."""
    spread = []
    for lr, length in ((0.02, 50), (0.002, 500)):
        models = train_method(
            fl.DPSGD(graph, lr=lr, local_steps=1), federation, rounds=length, batch="all"
        ).models
        spread.append(float((models - models.mean(0)).norm()))
    assert spread[1] == pytest.approx(spread[0] / 10, rel=0.1)


def test_bytes_are_one_model_each_way_along_every_edge(federation, graph):
    last = train_method(fl.DPSGD(graph, lr=LR), federation, dtype="float32").scores[-1]
    assert last.bytes_up == last.bytes_down == ROUNDS * 2 * graph.edges * 4 * 15


def test_a_server_vertex_is_refused():
    with pytest.raises(fl.InputError, match="D-PSGD has no server; use fedavg"):
        fl.DPSGD(fl.Graph.star("abc", server=True))
