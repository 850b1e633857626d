"""Implicit mixing: exactly the proximal step, stable for every strength, by exchanges of neighbours."""

import numpy as np
import pytest
import torch

import fedlap as fl
from fedlap.graph import weights
from fedlap.graph.implicit import compute_chebyshev_steps, count_exchanges, mix_implicitly, run_chebyshev

N, P = 9, 4
FORMS = ["complete", "dense", "sparse", "star"]


def build_graph(form, monkeypatch):
    names = [f"k{place}" for place in range(N)]
    if form == "complete":
        return fl.Graph.complete(names, 0.3)
    if form == "star":
        return fl.Graph.star(names[:-1], 0.7, server=True)
    rng = np.random.default_rng(5)
    a = np.triu(rng.random((N, N)) * (rng.random((N, N)) < 0.5), 1)
    if form == "sparse":
        monkeypatch.setattr(weights, "DENSE_UP_TO", 0)
    return fl.Graph.from_matrix(a + a.T, names)


def laplacian(graph):
    a = graph.weights.matrix().toarray()
    return torch.from_numpy(np.diag(a.sum(1)) - a)


def models(rows=N, seed=0):
    return torch.randn(rows, P, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def disagreement(W):
    return (W - W.mean(0)).norm().item()


@pytest.mark.parametrize("step", [0.0, 0.1, 3.0, 200.0])
@pytest.mark.parametrize("form", FORMS)
def test_all_at_once(form, step, monkeypatch):
    graph, W = build_graph(form, monkeypatch), models()
    L = laplacian(graph)
    expected = torch.linalg.solve(torch.eye(N) + step * L, W)
    assert (mix_implicitly(graph, W, step) - expected).abs().max() < 1e-12
    order = torch.randperm(N, generator=torch.Generator().manual_seed(1))
    assert (mix_implicitly(graph, W[order], step, order, W) - expected[order]).abs().max() < 1e-12
    single = mix_implicitly(graph, W.float(), step)
    assert (single - expected).abs().max() < 1e-5


@pytest.mark.parametrize("step", [0.1, 3.0, 200.0])
@pytest.mark.parametrize("form", FORMS)
def test_some_at_a_time(form, step, monkeypatch):
    """(I + sL_SS) w⁺ = w_S − sL_SU w_U; or, among the sampled alone, with their own Laplacian."""
    graph, W, ids = build_graph(form, monkeypatch), models(), torch.tensor([7, 2, 8, 4])
    L, w = laplacian(graph), models(4, seed=3)
    rest = [k for k in range(N) if k not in ids.tolist()]
    inside = L[ids][:, ids]
    expected = torch.linalg.solve(torch.eye(4) + step * inside, w - step * L[ids][:, rest] @ W[rest])
    assert (mix_implicitly(graph, w, step, ids, W) - expected).abs().max() < 1e-12
    among = inside - torch.diag(inside.sum(1))
    expected = torch.linalg.solve(torch.eye(4) + step * among, w)
    assert (mix_implicitly(graph, w, step, ids) - expected).abs().max() < 1e-12


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("step", [0.01, 1.0, 1e3])
@pytest.mark.parametrize("exchanges", [1, 2, 3, 7, None])
def test_disagreement_never_grows(form, step, exchanges, monkeypatch):
    """Along no direction: the norm of the map is 1, and means stay."""
    graph = build_graph(form, monkeypatch)
    every = torch.eye(N, dtype=torch.float64)
    if exchanges is None:
        mixed = mix_implicitly(graph, every, step)
    else:
        steps = compute_chebyshev_steps(step * graph.rho, exchanges)
        mixed = run_chebyshev(steps, every, every, lambda w: step * graph.apply_laplacian(w))
    assert (mixed - mixed.T).abs().max() < 1e-10
    values = torch.linalg.eigvalsh((mixed + mixed.T) / 2)
    assert values.abs().max() <= 1 + 1e-10
    assert (mixed.sum(0) - 1).abs().max() < 1e-10
    W = models()
    assert disagreement(mixed @ W) <= disagreement(W)


def test_exchanges_are_degrees_of_a_polynomial():
    """On a path, after m exchanges nothing has come from further than m away."""
    graph = fl.Graph.path([f"k{place}" for place in range(N)])
    every = torch.eye(N, dtype=torch.float64)
    for exchanges in (1, 2, 3):
        mixed = run_chebyshev(
            compute_chebyshev_steps(5 * graph.rho, exchanges),
            every,
            every,
            lambda w: 5 * graph.apply_laplacian(w),
        )
        apart = (torch.arange(N).unsqueeze(0) - torch.arange(N).unsqueeze(1)).abs()
        assert mixed[apart > exchanges].abs().max() < 1e-15
        assert mixed[apart == exchanges].abs().min() > 1e-3


@pytest.mark.parametrize("coupling", [1e-9, 0.5, 2.0, 1e4])
@pytest.mark.parametrize("error", [1e-3, 1e-7])
def test_enough_is_enough(coupling, error):
    """The error left is what was asked for, at every eigenvalue."""
    values = torch.linspace(0, coupling, 2001, dtype=torch.float64).unsqueeze(1)
    one = torch.ones_like(values)
    found = run_chebyshev(
        compute_chebyshev_steps(coupling, count_exchanges(coupling, error)), one, one, lambda x: values * x
    )
    assert (found - 1 / (1 + values)).abs().max() <= error
    assert found[0] == 1


def quadratic(clients=5, rows=30, features=3):
    g = torch.Generator().manual_seed(2)
    arrays = {}
    for k in range(clients):
        x = torch.randn(rows, features, generator=g, dtype=torch.float64)
        w = torch.randn(features, 1, generator=g, dtype=torch.float64)
        arrays[f"k{k}"] = x, x @ w + 0.1 * torch.randn(rows, 1, generator=g, dtype=torch.float64)
    return arrays


GRADIENT = {"lr": 0.2, "local_steps": 1, "mixing": "implicit"}


def ring():
    arrays = quadratic()
    federation = fl.Federation.from_arrays(arrays, test_share=0.0, scale="none")
    return arrays, federation, fl.Graph.ring(federation.clients)


def train_models(federation, method, rounds, **more):
    settings = {"rounds": rounds, "batch": "all", "dtype": "float64", "evaluate_every": 0, **more}
    return fl.fit(method, federation, fl.models.linear(l2=0.01), **settings).models


def minimiser(arrays, graph, strength, l2=0.01):
    """Minimise J for squared errors: one linear system of all clients together."""
    names, blocks, right = list(arrays), [], []
    for x, y in arrays.values():
        z = torch.cat([x, torch.ones(len(x), 1)], 1)
        blocks.append(z.T @ z / len(z) + l2 * torch.eye(z.shape[1]))
        right.append(z.T @ y / len(z))
    d = blocks[0].shape[0]
    H = torch.block_diag(*blocks) + strength * torch.kron(laplacian(graph), torch.eye(d))
    return torch.linalg.solve(H, torch.cat(right)).view(len(names), d)


@pytest.mark.parametrize("strength", [0.1, 50.0])
def test_its_fixed_point_is_the_minimiser(strength):
    """With one full gradient a round."""
    arrays, federation, graph = ring()
    found = train_models(federation, fl.FedU(graph, strength=strength, **GRADIENT), 400)
    assert (found - minimiser(arrays, graph, strength)).abs().max() < 1e-9


@pytest.mark.slow
def test_peers_come_to_the_same_where_exchanges_reach():
    arrays, federation, graph = ring()
    reach = count_exchanges(0.2 * 5 * graph.rho, 1e-11)
    found = train_models(federation, fl.DFedU(graph, strength=5.0, exchanges=reach, **GRADIENT), 200)
    once = train_models(federation, fl.DFedU(graph, strength=5.0, exchanges=1, **GRADIENT), 200)
    expected = minimiser(arrays, graph, 5.0)
    assert (found - expected).abs().max() < 1e-8
    assert (once - expected).abs().max() > 1e-3


@pytest.mark.slow
def test_with_more_steps_the_fixed_point_is_near_to_first_order():
    """Half the step, half the distance, as with explicit mixing."""
    arrays, federation, graph = ring()
    apart = []
    for lr in (0.04, 0.02, 0.01):
        method = fl.FedU(graph, strength=2.0, lr=lr, local_steps=5, mixing="implicit")
        apart.append(
            (train_models(federation, method, int(8 / lr)) - minimiser(arrays, graph, 2.0)).norm().item()
        )
    assert 1.7 < apart[0] / apart[1] < 2.3
    assert 1.8 < apart[1] / apart[2] < 2.2


@pytest.mark.slow
def test_sampled_rounds_settle_where_the_minimiser_is():
    arrays, federation, graph = ring()
    found = train_models(federation, fl.FedU(graph, strength=2.0, **GRADIENT), 600, sample=0.6)
    assert (found - minimiser(arrays, graph, 2.0)).abs().max() < 1e-6


def test_a_strength_that_explicit_mixing_refuses_is_taken():
    graph = fl.Graph.ring([f"k{k}" for k in range(5)])
    with pytest.raises(fl.InputError, match="set mixing = implicit or allow_unstable"):
        fl.FedU(graph, strength=100.0, lr=0.2)
    assert fl.FedU(graph, strength=100.0, lr=0.2, mixing="implicit").coupling.is_stable
    assert fl.DFedU(graph, strength=100.0, lr=0.2, mixing="implicit").coupling.is_stable


def test_exchanges_are_counted_in_the_bytes():
    federation = fl.Federation.from_arrays(quadratic(), test_share=0.0, scale="none")
    graph, sent = fl.Graph.ring(federation.clients), []
    for exchanges in (1, 3):
        method = fl.DFedU(graph, strength=1.0, mixing="implicit", exchanges=exchanges)
        sent.append(fl.fit(method, federation, fl.models.linear(), rounds=2).scores[-1].bytes_up)
    assert sent[1] == 3 * sent[0] > 0


@pytest.mark.parametrize(
    ("wrong", "settings"),
    [
        ("exchanges = 2; Algorithm 2 has one per round", {"exchanges": 2}),
        ("exchanges", {"exchanges": 0, "mixing": "implicit"}),
    ],
)
def test_mistakes(wrong, settings):
    with pytest.raises(fl.InputError, match=wrong):
        fl.DFedU(fl.Graph.ring(["a", "b", "c"]), **settings)


def test_some_parameters_at_a_time_are_all_of_them(monkeypatch):
    graph, W, ids = build_graph("sparse", monkeypatch), models(), torch.tensor([7, 2, 8, 4])
    expected = (
        mix_implicitly(graph, W, 3.0),
        mix_implicitly(graph, W[ids], 3.0, ids, W),
        mix_implicitly(graph, W[ids], 3.0, ids),
    )
    monkeypatch.setattr("fedlap.graph.implicit.IMPLICIT_BLOCK", 1)
    found = (
        mix_implicitly(graph, W, 3.0),
        mix_implicitly(graph, W[ids], 3.0, ids, W),
        mix_implicitly(graph, W[ids], 3.0, ids),
    )
    for one, other in zip(found, expected, strict=True):
        assert (one - other).abs().max() < 1e-13
