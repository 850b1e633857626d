"""dFedU on a graph that peers learn: against plain NumPy, and what is exactly true."""

import numpy as np
import pytest
import torch

import fedlap as fl
from fedlap.algorithms.edge_learning import Candidates
from fedlap.graph.learning import compute_squared_distances
from related_methods import (
    FEATURES,
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
    stack,
    steps_of,
    train_method,
)

STRENGTH, BETA, RIDGE, GAMMA = 0.3, 0.2, 0.05, 1.5


def plain_learning(arrays, limit, start, work, gamma=GAMMA):
    steps, names = steps_of(arrays, work), list(arrays)
    r = work.get("steps") or work["epochs"]
    w, a = {k: start.copy() for k in names}, limit.copy()
    for t in range(1, ROUNDS + 1):
        for k in names:
            for batch in steps(k, t):
                w[k] = w[k] - LR * slope(w[k], batch)
        d, b = a.sum(1), a.copy()
        mixed = {}
        for i, k in enumerate(names):
            pull = sum(a[i, j] * (w[k] - w[o]) for j, o in enumerate(names))
            mixed[k] = w[k] - LR * r * STRENGTH * pull
            for j, o in enumerate(names):
                if limit[i, j] and t > 1:
                    gain = 1 / (d[i] + 1) + 1 / (d[j] + 1)
                    step = ((w[k] - w[o]) ** 2).sum() / 2 + BETA * (2 * RIDGE * a[i, j] - gain)
                    b[i, j] = min(max(a[i, j] - gamma * step, 0.0), limit[i, j])
        w, a = mixed, b
    return np.stack(list(w.values())), a


def to_matrix(method, peers):
    places, limits = method.candidates.places, method.candidates.limits
    n = len(places)
    return torch.zeros(n, n, dtype=torch.float64).scatter_add(1, places, limits * peers.shares)


@either_work
@pytest.mark.parametrize("engine", ["stacked", "one_by_one"])
def test_models_and_weights_are_those_of_plain_loops(arrays, federation, graph, work, engine):
    start, limit = a_start(), graph.weights.matrix().toarray()
    method = fl.DFedULearned(graph, STRENGTH, BETA, RIDGE, GAMMA, **fields(work))
    found = train_method(method, federation, start=start, engine=engine)
    models, a = plain_learning(arrays, limit, start, work)
    learned = to_matrix(method.bind(federation.roster, found.objective), found.private)
    assert distance(found.models, models) < 1e-9
    assert distance(learned, a) < 1e-9
    assert distance(a, a.T) == 0
    assert (a == 0).sum() > (limit == 0).sum()  # edges have vanished,
    assert ((a > 0) & (a < limit)).any()  # others have become weaker,
    assert distance(found.private.degree.flatten(), a.sum(1)) < 1e-9


@either_work
def test_where_degrees_weigh_most_it_is_dfedu(federation, graph, work):
    found, plain = (
        train_method(method, federation)
        for method in (
            fl.DFedULearned(graph, STRENGTH, 1e6, 0.0, **fields(work)),
            fl.DFedU(graph, STRENGTH, **fields(work)),
        )
    )
    assert distance(found.models, plain.models) < 1e-12
    assert (found.private.shares == 1).all()


def test_the_objective_falls(federation, graph):
    """Full gradients, short steps, and the default step of the weights."""
    method = fl.DFedULearned(graph, STRENGTH, BETA, RIDGE, lr=0.02, local_steps=1)
    how = {"rounds": 60, "batch": "all", "evaluate_every": 1, "score_training": "always"}
    values = [score.objective for score in train_method(method, federation, **how).scores]
    assert max(np.diff(values)) < 1e-9
    assert values[-1] < values[0] - 0.1


def test_two_kinds_of_clients_part(federation):
    rng = np.random.default_rng(3)
    arrays = {}
    for place, k in enumerate("abcdef"):
        x = rng.normal(size=(60, FEATURES))
        y = (x[:, 0] > 0).astype(int)
        arrays[k] = (x, y if place % 2 else 1 - y)
    opposite = fl.Federation.from_arrays(arrays, test_share=0, labels=2, scale="none")
    method = fl.DFedULearned(fl.Graph.complete(opposite.clients), 0.01, 2.0, graph_lr=0.02, lr=0.1)
    found = train_method(method, opposite, rounds=100)
    a = to_matrix(method.bind(opposite.roster, found.objective), found.private)
    assert a[::2, 1::2].max() == 0
    assert a[0, 2] > 0.3
    assert a[1, 3] > 0.3


def test_squared_distances():
    w = stack(5)
    assert distance(compute_squared_distances(w), torch.cdist(w, w).square()) < 1e-12


def test_bytes_are_a_model_and_a_degree_along_every_candidate_edge(federation, graph):
    last = train_method(fl.DFedULearned(graph), federation, dtype="float32").scores[-1]
    assert last.bytes_up == last.bytes_down == ROUNDS * 2 * graph.edges * 4 * (15 + 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"degree_weight": 0.0}, "dfedu-learned: degree_weight = 0"),
        ({"ridge": -1.0}, "dfedu-learned: ridge = -1"),
        ({"graph_lr": -1.0}, "dfedu-learned: graph_lr = -1"),
        ({"strength": 100.0}, "dfedu-learned: strength = 100 is too large"),
    ],
)
def test_values_that_cannot_be_meant_are_refused(settings, message):
    with pytest.raises(fl.InputError, match=message):
        fl.DFedULearned(fl.Graph.complete("abc"), **settings)


def test_edges_are_copied_once_per_device_and_precision(graph):
    """A captured round reads the copies of the round before it: a copy from the host would end a capture."""
    candidates = Candidates.of(graph)
    for dtype in (torch.float32, torch.float64):
        first, again = (candidates.copy_like(torch.ones(1, dtype=dtype)) for _ in range(2))
        assert all(one is other for one, other in zip(first, again, strict=True))
        assert first[1].dtype is dtype
        assert torch.equal(first[1].double(), candidates.limits.to(dtype).double())


def test_without_candidate_edges_it_is_local(federation):
    alone = fl.Graph.from_edges([], federation.clients)
    found, local = (
        train_method(method, federation)
        for method in (fl.DFedULearned(alone, STRENGTH, BETA, ridge=0.0), fl.Local())
    )
    assert distance(found.models, local.models) < 1e-13
