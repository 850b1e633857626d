"""GTVMin: against plain NumPy, and its gap against the optimum of the network lasso."""

import numpy as np
import pytest

import fedlap as fl
from related_methods import (
    L2,
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

LAMBDA, BALANCE = 0.6, 2.0


def plain_gtvmin(arrays, a, start, work):
    steps, names = steps_of(arrays, work), list(arrays)
    tau, sigma = BALANCE / (a > 0).sum(1).max(), 1 / (2 * BALANCE)
    w = {k: start.copy() for k in names}
    edges = [(i, j) for i in range(len(names)) for j in range(i) if a[i, j] > 0]
    u = dict.fromkeys(edges, np.zeros_like(start))
    old = dict(u)
    for t in range(1, ROUNDS + 1):
        for i, k in enumerate(names):
            pull = np.zeros_like(start)
            for e in edges:
                if i in e:
                    pull += (1 if e[0] == i else -1) * (2 * u[e] - old[e])
            anchor = w[k]
            for batch in steps(k, t):
                w[k] = w[k] - LR * (slope(w[k], batch) + pull + (w[k] - anchor) / tau)
        old = dict(u)
        for i, j in edges:
            v = u[i, j] + sigma * (w[names[i]] - w[names[j]])
            u[i, j] = v * min(1.0, LAMBDA * a[i, j] / np.linalg.norm(v))
    return np.stack(list(w.values())), edges, u


@either_work
@pytest.mark.parametrize("engine", ["stacked", "one_by_one"])
def test_gtvmin_is_its_algorithm(arrays, federation, graph, work, engine):
    start, a = a_start(), graph.weights.matrix().toarray()
    method = fl.GTVMin(graph, LAMBDA, BALANCE, **fields(work))
    found = train_method(method, federation, start=start, engine=engine)
    models, edges, u = plain_gtvmin(arrays, a, start, work)
    assert distance(found.models, models) < 1e-9
    sums = np.zeros_like(models)
    for i, j in edges:
        sums[i] += u[i, j]
        sums[j] -= u[i, j]
    assert distance(found.private.duals.sum(1), sums) < 1e-9
    norms = [np.linalg.norm(u[e]) / (LAMBDA * a[e]) for e in edges]
    assert min(norms) < 0.99  # some duals are free,
    assert max(norms) == pytest.approx(1)  # some are at the limit
    gap = sum(LAMBDA * a[i, j] * np.linalg.norm(models[i] - models[j]) for i, j in edges)
    gap -= sum(u[i, j] @ (models[i] - models[j]) for i, j in edges)
    for w, rows, pull in zip(models, arrays.values(), sums, strict=True):
        gap += ((slope(w, rows) + pull) ** 2).sum() / (2 * L2)
    assert found.scores[-1].gap == pytest.approx(gap, rel=1e-6)


def test_the_gap_bounds_the_distance_to_the_optimum(federation, graph):
    """Full gradients; the last run is so close to J* that its gap is its error."""
    method = fl.GTVMin(graph, 0.02, 4.0, lr=0.4, local_steps=20)
    model = fl.models.linear(l2=0.1)
    how = {"batch": "all", "score_training": "always", "evaluate_every": 25}
    last = train_method(method, federation, model, rounds=300, **how)
    best, exact = last.scores[-1].objective, last.scores[-1].gap
    assert 0 <= exact < 1e-5
    for score in last.scores:
        assert score.objective - best <= score.gap + 1e-9
    smoothed = fl.NetworkLasso(graph, 0.02, 2e-3, lr=0.004, local_steps=5)
    near = train_method(smoothed, federation, model, rounds=50, batch="all", start=last.models)
    peers = method.bind(federation.roster, near.objective).init_clients(near.models, federation.train.count)
    losses = near.scores[-1].objective - float(fl.NetworkLasso.penalty(near.algorithm, near.server, None))
    above = losses + float(method.penalty(None, peers)) - best
    assert -exact <= above < 1e-3  # descent on nearly the same problem finds nothing lower


def test_clusters_share_one_model_exactly_at_the_optimum(federation):
    """At a large λ all models are equal: distances, not squares, are penalised."""
    method = fl.GTVMin(fl.Graph.complete(federation.clients), 2.0, 4.0, lr=0.1, local_steps=20)
    found = train_method(method, federation, fl.models.linear(l2=0.1), rounds=200, batch="all")
    assert distance(found.models, found.models[:1]) < 1e-4


def test_without_strong_convexity_there_is_no_bound(federation, graph):
    for model in (fl.models.linear(), fl.models.mlp(3, l2=0.1)):
        last = train_method(fl.GTVMin(graph), federation, model, rounds=1).scores[-1]
        assert last.gap == float("inf")


def test_strength_zero_descends_on_each_loss_alone(federation, graph):
    found = train_method(fl.GTVMin(graph, 0.0, 1e12, lr=LR), federation)
    alone = train_method(fl.Local(lr=LR), federation)
    assert distance(found.models, alone.models) < 1e-9
    assert not found.private.duals.any()


def test_bytes_are_one_model_each_way_along_every_edge(federation, graph):
    last = train_method(fl.GTVMin(graph), federation, dtype="float32").scores[-1]
    assert last.bytes_up == last.bytes_down == ROUNDS * 2 * graph.edges * 4 * 15


def test_values_that_cannot_be_meant_are_refused():
    graph = fl.Graph.complete("abc")
    for settings, message in (
        ({"strength": -1.0}, "gtvmin: strength = -1"),
        ({"balance": 0.0}, "gtvmin: balance = 0"),
        ({"lr": 0.0}, "gtvmin: lr = 0"),
    ):
        with pytest.raises(fl.InputError, match=message):
            fl.GTVMin(graph, **settings)
