"""FedU that passes steps on: against loops in NumPy, and its laws."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import fedlap as fl
import reference
from fedlap.algorithms.server_state import ClientTable
from fedlap.graph import extension, weights
from fedlap.graph.extension import SparseExtension, build_extension
from fedlap.training.fit import fit_all
from fedlap.training.jobs import Job
from fedlap.training.schedule import Schedule
from fedlap.training.state import scatter_rows
from random_inputs import random_arrays, random_weights

COUNTS = [7, 23, 5, 12, 41, 9, 2]
LABELS, L2, LR, ETA, SEED = 3, 0.02, 0.05, 0.3, 11
MODEL = fl.models.linear(l2=L2)


@pytest.fixture(scope="module")
def problem():
    arrays = random_arrays(COUNTS, labels=LABELS)
    federation = fl.Federation.from_arrays(arrays, test_share=0, labels=LABELS, scale="none")
    start = np.random.default_rng(1).normal(size=4 * LABELS + LABELS) / 3
    return arrays, federation, start


def separate(names):
    """A triangle, an edge, and two clients without neighbours."""
    a = np.zeros((7, 7))
    for one, other, weight in ((0, 1, 1.0), (1, 2, 0.5), (0, 2, 2.0), (3, 4, 0.7)):
        a[one, other] = a[other, one] = weight
    return a


def star(names):
    a = np.zeros((7, 7))
    a[0, 1:] = a[1:, 0] = 1.0
    return a


GRAPHS = {
    "random": random_weights,
    "complete": lambda names: np.ones((7, 7)) - np.eye(7),
    "separate": separate,
    "star": star,
}


def build_graph(form, names):
    return (
        fl.Graph.complete(names) if form == "complete" else fl.Graph.from_matrix(GRAPHS[form](names), names)
    )


def pass_steps(a, ids, steps):
    """w_U's steps −Δ_U⁻¹ K_UU⁻¹ K_US Δ_S d_S, with K = L + D/(N − 1) and Δ² the diagonal of K⁻¹."""
    d = a.sum(1)
    K = np.diag(np.where(d > 0, d * len(d) / (len(d) - 1), 1.0)) - a
    scale = np.sqrt(np.diag(np.linalg.inv(K)))
    rest = [k for k in range(len(a)) if k not in ids]
    known = K[np.ix_(rest, ids)] @ (scale[ids, None] * steps)
    return rest, -np.linalg.solve(K[np.ix_(rest, rest)], known) / scale[rest, None]


def train_plainly(arrays, a, start, *, rounds, batch, share, work, server=False):
    """The method as loops; a server vertex is the last one of `a`, and starts at the mean."""
    names = list(arrays)
    W = np.stack([start] * len(a))
    r = work.get("steps") or work["epochs"]
    for t in range(1, rounds + 1):
        clients = sorted(map(names.index, reference.draw_cohort(names, SEED, t, share)))
        chosen = [*clients, len(a) - 1] if server else clients
        after = W.copy()
        for k in clients:
            after[k] = reference.local_steps(W[k], arrays, names[k], SEED, t, LR, batch, LABELS, L2, work)
        pulled = {k: after[k] - LR * r * ETA * (a[k][:, None] * (after[k] - after)).sum(0) for k in chosen}
        rest, passed = pass_steps(a, clients, np.stack([pulled[k] - W[k] for k in clients]))
        for k, step in zip(rest, passed, strict=True):
            W[k] = W[k] + step if k not in chosen else W[k]
        for k in chosen:
            W[k] = pulled[k]
    return W[: len(names)]


def train(algorithm, federation, start, **schedule):
    usual = {"rounds": 20, "batch": 4, "seed": SEED, "dtype": "float64", "evaluate_every": 0}
    return fl.fit(algorithm, federation, MODEL, start=torch.from_numpy(start), **{**usual, **schedule})


@pytest.fixture(params=["factorised", "iterative"])
def large(request, monkeypatch):
    """Store small graphs as large ones, and solve along them by a factorisation or iteratively."""
    monkeypatch.setattr(weights, "DENSE_UP_TO", 0)
    if request.param == "iterative":
        monkeypatch.setattr(extension, "FEW_ENTRIES", 0)


@pytest.mark.parametrize("share", [0.1, 0.45])
@pytest.mark.parametrize("form", ["random", "separate", "star"])
def test_on_a_large_graph_it_is_its_equations(problem, large, form, share):
    arrays, federation, start = problem
    method = fl.FedUPassing(build_graph(form, federation.clients), strength=ETA, lr=LR, local_steps=3)
    assert isinstance(method.extension, SparseExtension)
    names, work = federation.clients, {"steps": 3}
    expected = train_plainly(arrays, GRAPHS[form](names), start, rounds=20, batch=4, share=share, work=work)
    found = train(method, federation, start, sample=share).models.numpy()
    assert np.abs(found - expected).max() < 1e-9


def test_on_a_large_graph_it_resumes_and_stacks(problem, large):
    _, federation, start = problem
    method = fl.FedUPassing(build_graph("random", federation.clients), strength=ETA, lr=LR)
    whole = train(method, federation, start, sample=0.45)
    half = train(method, federation, start, sample=0.45, rounds=9)
    resumed = train(method, federation, start, sample=0.45, resume=half)
    assert torch.equal(whole.models, resumed.models)
    jobs = [Job(replace(method, strength=eta), federation, MODEL, SEED) for eta in (ETA, 0.1)]
    stacked = fit_all(jobs, Schedule(20, 4, 0.45, dtype="float64"))
    for job, found in zip(jobs, stacked, strict=True):
        alone = fit_all([job], Schedule(20, 4, 0.45, dtype="float64"))[0]
        assert (found.models - alone.models).abs().max() < 1e-12


@pytest.mark.parametrize("work", [{"steps": 3}, {"epochs": 2}], ids=["steps", "epochs"])
@pytest.mark.parametrize("share", [0.1, 0.45])
@pytest.mark.parametrize("form", GRAPHS)
def test_it_is_its_equations(problem, form, share, work):
    arrays, federation, start = problem
    fields = {f"local_{kind}": number for kind, number in work.items()}
    method = fl.FedUPassing(build_graph(form, federation.clients), strength=ETA, lr=LR, **fields)
    expected = train_plainly(
        arrays, GRAPHS[form](federation.clients), start, rounds=20, batch=4, share=share, work=work
    )
    found = train(method, federation, start, sample=share).models.numpy()
    assert np.abs(found - expected).max() < 1e-9
    unmoved = train(
        fl.FedU(method.graph, strength=ETA, lr=LR, **fields), federation, start, sample=share
    ).models.numpy()
    assert np.abs(found - unmoved).max() > 1e-2  # passing is no small change


def test_a_server_vertex_is_passed_through_and_not_on(problem):
    arrays, federation, start = problem
    a = np.zeros((8, 8))
    a[7, :7] = a[:7, 7] = 0.8
    graph = fl.Graph.star(federation.clients, 0.8, server=True)
    method = fl.FedUPassing(graph, strength=ETA, lr=LR, local_steps=3)
    plain = train_plainly(arrays, a, start, rounds=20, batch=4, share=0.45, work={"steps": 3}, server=True)
    assert np.abs(train(method, federation, start, sample=0.45).models.numpy() - plain).max() < 1e-9


@pytest.mark.parametrize("mixing", ["explicit", "implicit"])
@pytest.mark.parametrize("form", GRAPHS)
def test_with_everyone_sampled_it_is_fedu(problem, form, mixing):
    _, federation, start = problem
    settings = {"strength": ETA, "lr": LR, "mixing": mixing}
    graph = build_graph(form, federation.clients)
    one, other = (train(method(graph, **settings), federation, start) for method in (fl.FedUPassing, fl.FedU))
    assert (one.models - other.models).abs().max() < 1e-12
    assert one.scores[-1].bytes_up == other.scores[-1].bytes_up


@pytest.mark.parametrize("form", ["random", "complete"])
def test_bytes_are_those_of_fedu(problem, form):
    _, federation, start = problem
    graph = build_graph(form, federation.clients)
    sent = [
        (score.bytes_up, score.bytes_down)
        for method in (fl.FedUPassing, fl.FedU)
        for score in train(method(graph, strength=ETA, lr=LR), federation, start, sample=0.45).scores
    ]
    assert sent[0] == sent[1]
    assert sent[0][0] > 0


def test_no_step_is_passed_to_other_components_or_to_isolated_clients(problem):
    _, federation, _ = problem
    method = fl.FedUPassing(build_graph("separate", federation.clients), strength=ETA, lr=LR)
    W = torch.randn(7, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    server = method.init_server(W)._replace(models=ClientTable(W))
    ids = torch.tensor([1, 5])
    new = scatter_rows(server._replace(models=ClientTable(W.clone())), method.merge(server, ids, W[ids] + 1))
    moved = (new.models.values - W).abs().amax(1).tolist()
    assert min(moved[k] for k in (0, 1, 2, 5)) > 0.1  # the triangle of client 1, and client 5 itself
    assert max(moved[k] for k in (3, 4, 6)) == 0


@pytest.mark.parametrize("form", ["random", "complete"])
def test_missing_answers_are_fewer_sampled_clients(problem, form):
    """A server may merge fewer answers than it asked for, in one round all and in another one only some."""
    _, federation, _ = problem
    graph = build_graph(form, federation.clients)
    a = GRAPHS[form](federation.clients)
    method = fl.FedUPassing(graph, strength=ETA, lr=LR)
    W = torch.randn(7, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    server, expected = method.init_server(W), W.numpy()
    for turn, ids in enumerate(([3], [0, 1, 2, 3, 4, 5, 6], [6, 1], [2, 4, 5])):
        up = torch.randn(len(ids), 5, generator=torch.Generator().manual_seed(turn), dtype=torch.float64)
        after = expected.copy()
        after[ids] = up.numpy()
        pulled = after - LR * 5 * ETA * (np.diag(a.sum(1)) - a) @ after
        rest, passed = pass_steps(a, ids, (pulled - expected)[ids])
        expected = expected.copy()
        expected[ids] = pulled[ids]
        expected[rest] += passed
        server = scatter_rows(server, method.merge(server, torch.tensor(ids), up.clone()))
        assert np.abs(method.personal_models(server, None, 7).numpy() - expected).max() < 1e-12
        assert np.abs(method.send(server, torch.tensor([4, 0])).numpy() - expected[[4, 0]]).max() < 1e-12


def test_only_sampled_rows_are_written_on_a_complete_graph(problem):
    _, federation, _ = problem
    method = fl.FedUPassing(fl.Graph.complete(federation.clients), strength=ETA, lr=LR)
    W = torch.randn(7, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    update = method.merge(method.init_server(W), torch.tensor([4, 2]), W[:2].clone())
    assert update.models.values.shape == (2, 5)
    assert update.common.shape == (1, 5)


def descend(graph, L, H, target, eta, rounds, sampled, step, seed=0):
    """Play rounds of one full gradient step each, with the pull from the models before it."""
    rng, along = np.random.default_rng(seed), build_extension(graph)
    W = torch.zeros_like(target)
    for _ in range(rounds):
        ids = torch.from_numpy(np.sort(rng.choice(len(W), sampled, replace=False)))
        gradient = H * (W - target) + eta * L @ W
        W = W + along.extend(ids, -step * gradient[ids])
    return W


@pytest.mark.parametrize("form", ["complete", "ring", "star", pytest.param("sparse", marks=pytest.mark.slow)])
def test_the_fixed_point_is_the_minimiser(form, monkeypatch):
    """With R = 1, full gradients and the pull from old models, for quadratic losses, 3 of 12 clients."""
    if form == "sparse":
        monkeypatch.setattr(weights, "DENSE_UP_TO", 0)
    names, rng = [f"k{k}" for k in range(12)], np.random.default_rng(0)
    graph = {"complete": fl.Graph.complete, "star": fl.Graph.star}.get(form, fl.Graph.ring)(names)
    a = torch.from_numpy(graph.weights.matrix().toarray())
    L = torch.diag(a.sum(1)) - a
    H, target = torch.from_numpy(rng.uniform(0.5, 2, (12, 1))), torch.from_numpy(rng.normal(size=(12, 2)))
    eta = 0.4 / graph.rho
    best = torch.linalg.solve(torch.diag(H[:, 0]) + eta * L, H * target)
    found = descend(graph, L, H, target, eta, rounds=1_200, sampled=3, step=0.25)
    assert (found - best).abs().max() < 1e-11
    assert (best - target).abs().max() > 0.05  # W* is not where clients alone would go


def test_settings_are_checked_as_those_of_fedu(problem):
    _, federation, start = problem
    graph = fl.Graph.complete(federation.clients)
    with pytest.raises(fl.InputError, match="strength = 50 is too large"):
        fl.FedUPassing(graph, strength=50.0, lr=LR)
    for method, advice in (
        (fl.FedUPassing, "use mixing = implicit, or set allow_unstable"),
        (fl.FedU, "use mixing = implicit or neighbours = sampled, or set allow_unstable"),
    ):
        with pytest.raises(fl.InputError, match=f"for 1 of 7 clients.*{advice}"):
            train(method(graph, strength=1.1, lr=LR), federation, start, sample=0.1)


def test_large_graphs_are_not_captured(problem, monkeypatch):
    """There the number of iterations depends on values."""
    _, federation, _ = problem
    for form in GRAPHS:
        assert fl.FedUPassing(build_graph(form, federation.clients)).is_static
    monkeypatch.setattr(weights, "DENSE_UP_TO", 0)
    assert not fl.FedUPassing(build_graph("random", federation.clients)).is_static
