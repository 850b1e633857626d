"""The network lasso: descent on its problem, and what is exactly true of its pull and its limits."""

import numpy as np
import pytest
import torch

import fedlap as fl
from fedlap.algorithms import ClientTable
from fedlap.algorithms.server_state import ClientModels
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.prepare import prepare
from related_methods import (
    LR,
    a_start,
    distance,
    either_share,
    either_work,
    fields,
    given_arrays,  # noqa: F401 — a fixture
    given_federation,  # noqa: F401 — a fixture
    given_graph,  # noqa: F401 — a fixture
    rounds,
    slope,
    stack,
    steps_of,
    train_method,
)


def plain_lasso(arrays, a, start, share, work, eta, smoothing):
    steps, names = steps_of(arrays, work), list(arrays)
    repeats = work.get("steps") or work["epochs"]
    w = {k: start.copy() for k in names}
    for t, chosen in rounds(arrays, share):
        for k in chosen:
            for batch in steps(k, t):
                w[k] = w[k] - LR * slope(w[k], batch)
        pull = {
            k: sum(
                a[i, j] * (w[k] - w[o]) / max(np.linalg.norm(w[k] - w[o]), smoothing)
                for j, o in enumerate(names)
            )
            for i, k in enumerate(names)
        }
        w = {k: w[k] - LR * repeats * eta * pull[k] if k in chosen else w[k] for k in names}
    return np.stack(list(w.values()))


@either_work
@either_share
def test_the_network_lasso_is_descent_on_its_problem(arrays, federation, graph, work, share):
    start, a = a_start(), graph.weights.matrix().toarray()
    found = train_method(
        fl.NetworkLasso(graph, 0.3, 0.3, **fields(work)), federation, sample=share, start=start
    )
    assert distance(found.models, plain_lasso(arrays, a, start, share, work, 0.3, 0.3)) < 1e-9


# What is exactly true.


def server_of(W):
    """Return the server state with these models."""
    return ClientModels(ClientTable(W))


def merge(method, W, ids, up):
    """Return the new models of the clients `ids`."""
    return method.merge(server_of(W), ids, up).models.values


def test_the_lasso_s_mixing_is_a_step_along_its_penalty_s_gradient(graph):
    method = fl.NetworkLasso(graph, 0.3, 3.0, lr=LR, local_steps=4)
    W, ids = stack(6), torch.arange(6)
    apart = torch.pdist(W)
    assert apart.min() < 3.0 < apart.max()  # both sides of the smoothing
    point = W.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(method.penalty(server_of(point), None), point)
    assert distance(merge(method, W, ids, W), W - LR * 4 * gradient) < 1e-12


@either_work
@either_share
def test_the_lasso_without_strength_or_edges_is_local(federation, graph, work, share):
    alone = train_method(fl.Local(**fields(work)), federation, sample=share).models
    empty = fl.Graph.empty(federation.clients)
    for method in (
        fl.NetworkLasso(graph, 0.0, **fields(work)),
        fl.NetworkLasso(empty, 5.0, **fields(work)),
    ):
        assert torch.equal(train_method(method, federation, sample=share).models, alone)


@either_share
@pytest.mark.parametrize("server", [False, True], ids=["graph", "star"])
def test_a_very_smooth_lasso_is_fedu_with_its_strength_divided(federation, graph, share, server):
    graph = fl.Graph.star(federation.clients, 0.8, server=True) if server else graph
    lasso = train_method(fl.NetworkLasso(graph, 300.0, 1000.0, lr=LR), federation, sample=share)
    fedu = train_method(fl.FedU(graph, strength=0.3, lr=LR), federation, sample=share)
    assert distance(lasso.models, fedu.models) < 1e-9
    assert lasso.scores[-1].objective == pytest.approx(fedu.scores[-1].objective, rel=1e-9)


@pytest.mark.parametrize("ids", [[0, 1, 2, 3, 4, 5], [4, 1]], ids=["everyone", "some"])
@pytest.mark.parametrize("far", [1.0, 1e6])
def test_neighbours_in_the_lasso_pull_with_bounded_force(graph, ids, far):
    method = fl.NetworkLasso(graph, 0.3, lr=LR, allow_unstable=True)
    W, ids = far * stack(6), torch.tensor(ids)
    moved = (merge(method, W, ids, W[ids]) - W[ids]).norm(dim=1)
    most = LR * 5 * 0.3 * torch.from_numpy(graph.weights.matrix().sum(axis=1))[ids]
    assert (moved <= most * (1 + 1e-9)).all()
    assert (moved > 0.05 * most).all()


def test_the_lasso_s_mixing_never_raises_the_penalty_up_to_its_limit(graph):
    limit = 2 * 0.5 / (LR * 5 * graph.rho)
    W, ids = stack(6) / 5, torch.arange(6)
    for share, falls in ((0.999, True), (3.0, False)):
        method = fl.NetworkLasso(graph, share * limit, 0.5, lr=LR, allow_unstable=not falls)
        now, values = W.clone(), []
        for _ in range(60):
            values.append(method.penalty(server_of(now), None).item())
            now = merge(method, now, ids, now)
        assert (np.diff(values).max() <= 0) == falls
    with pytest.raises(fl.InputError, match=r"= 2\.002 > 2.*at most"):
        fl.NetworkLasso(graph, 1.001 * limit, 0.5, lr=LR)


def test_the_lasso_on_a_large_sparse_graph_looks_at_neighbours_alone():
    ring = fl.Graph.ring([str(k) for k in range(2100)])
    W, ids, ups = stack(2100), torch.tensor([0, 5, 2099, 6]), stack(4, seed=1)
    lasso = merge(fl.NetworkLasso(ring, 300.0, 1000.0, lr=LR), W, ids, ups)
    assert distance(lasso, merge(fl.FedU(ring, strength=0.3, lr=LR), W, ids, ups)) < 1e-12


def test_the_lasso_s_default_strength_is_stable_and_is_written_down():
    small, large = (fl.Graph.complete([str(k) for k in range(n)]) for n in (4, 400))
    assert fl.NetworkLasso(small).coupling.eta == 0.01
    assert fl.NetworkLasso(large).coupling.product == pytest.approx(1)
    asked = {"algorithm": {"name": "lasso"}, "graph": {"name": "complete"}, "data": {"name": "digits"}}
    experiment = next(prepare([Experiment.of({**asked, "model": {"name": "linear"}})])).experiment
    assert experiment.algorithm["strength"] == 0.01
