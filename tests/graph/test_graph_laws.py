"""Laws of every Laplacian, of every form it has, and of every maker of graphs."""

import inspect
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

import fedlap as fl
from fedlap.data.places import Places
from fedlap.graph import BUILDER_INPUTS, GRAPHS, Graph, build_graph, to_file
from fedlap.graph.spectrum import build_laplacian
from fedlap.graph.weights import DENSE_UP_TO, CompleteWeights, DenseWeights, SparseWeights
from graphs import matrix_of
from graphs import plain_laplacian as plain
from property_settings import long_law as law
from random_inputs import random_arrays, random_weights

weights = st.builds(
    lambda n, seed, density, scale: scale * random_weights(range(n), seed, density),
    st.integers(1, 12),
    st.integers(0, 10_000),
    st.sampled_from([0.0, 0.15, 0.5, 1.0]),
    st.sampled_from([1e-3, 1.0, 1e3]),
)
# The same weight between any two, which all three forms can hold.
flat = st.builds(
    lambda n, weight: weight * (1 - np.eye(n)), st.integers(1, 12), st.sampled_from([0.0, 0.5, 3.0])
)


def forms(a):
    """The same graph in every form that can hold it."""
    graphs = [Graph(None, DenseWeights(torch.from_numpy(a))), Graph(None, SparseWeights(csr_array(a)))]
    off = a[~np.eye(len(a), dtype=bool)]
    if len(np.unique(off)) < 2:
        graphs.append(Graph(None, CompleteWeights(len(a), float(off[0]) if len(off) else 1.0)))
    return graphs


def stack(rows, seed=0, params=4):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, params)))


@law
@given(st.one_of(weights, flat))
def test_the_laplacian(a):
    n, size = len(a), a.max(initial=0.0) + 1e-300
    for graph in forms(a):
        L = build_laplacian(graph.weights).toarray()
        assert np.array_equal(L, L.T)
        assert np.abs(L - plain(a)).max() <= 1e-12 * size
        assert np.abs(L @ np.ones(n)).max() <= 1e-12 * n * size
        values = np.linalg.eigvalsh(L)
        assert values[0] >= -1e-12 * n * size
        assert (values <= 1e-10 * size).sum() == graph.components


@law
@given(st.one_of(weights, flat), st.integers(0, 99))
def test_its_quadratic_form(a, seed):
    W = stack(len(a), seed)
    apart = (W[:, None] - W[None]).square().sum(2).numpy()
    double = (a * apart).sum() / 2
    for graph in forms(a):
        assert float(graph.smoothness(W)) == pytest.approx(double, rel=1e-11, abs=1e-300)
        assert float(graph.smoothness(W + 1e6)) == pytest.approx(double, rel=1e-6, abs=1e-300)
        assert float(graph.smoothness(torch.ones_like(W))) == 0


@law
@given(st.one_of(weights, flat))
def test_bounds_of_its_largest_eigenvalue(a):
    n, degree = len(a), a.sum(1).max()
    for graph in forms(a):
        assert graph.rho == pytest.approx(np.linalg.eigvalsh(plain(a))[-1], rel=1e-10, abs=1e-12 * degree)
        assert graph.rho <= 2 * degree * (1 + 1e-12)
        if n > 1:
            assert graph.rho >= n / (n - 1) * degree * (1 - 1e-12)
            assert graph.lambda2 <= n / (n - 1) * a.sum(1).min() * (1 + 1e-10) + 1e-12 * degree


@law
@given(st.one_of(weights, flat), st.data())
def test_all_forms_agree(a, data):
    n = len(a)
    ids = torch.tensor(data.draw(st.permutations(range(n)))[: data.draw(st.integers(1, n))])
    step = data.draw(st.sampled_from([0.0, 0.01, 0.7]))
    W, w = stack(n, 1), stack(len(ids), 2)
    first, *others = forms(a)

    def everything(graph):
        yield graph.weights.degrees(W)
        yield graph.weights.multiply(W)
        yield graph.apply_laplacian(W)
        yield graph.mix_(W.clone(), step)
        for elsewhere in (None, W):
            yield graph.pull(ids, w, elsewhere)
            yield graph.mix_(w.clone(), step, ids, elsewhere)

    for other in others:
        assert other.edges == first.edges == (a > 0).sum() // 2
        assert other.rho == pytest.approx(first.rho, rel=1e-10, abs=1e-300)
        assert other.lambda2 == pytest.approx(first.lambda2, rel=1e-10, abs=1e-12 * a.sum())
        for one, two in zip(everything(first), everything(other), strict=True):
            assert torch.allclose(one, two, rtol=1e-11, atol=1e-11 * float(a.max(initial=1.0)))
        for place in range(n):
            for one, two in zip(first.neighbours(place), other.neighbours(place), strict=True):
                assert np.array_equal(one, two)


@law
@given(weights, st.data())
def test_another_order_is_the_same_graph(a, data):
    n = len(a)
    names = [f"client {k}" for k in range(n)]
    order = data.draw(st.permutations(range(n)))
    wanted = tuple(names[k] for k in order)
    W = stack(n)
    for form in forms(a):
        graph = Graph(tuple(names), form.weights)
        turned = graph.align(wanted)
        assert turned.clients == wanted
        assert (turned.edges, turned.components) == (graph.edges, graph.components)
        assert turned.rho == pytest.approx(graph.rho, rel=1e-12)
        assert torch.allclose(turned.apply_laplacian(W[order]), graph.apply_laplacian(W)[order], rtol=1e-11)
        assert float(turned.smoothness(W[order])) == pytest.approx(float(graph.smoothness(W)), rel=1e-11)
        assert np.array_equal(matrix_of(turned.align(names)), matrix_of(graph))


@law
@given(weights, st.floats(0, 2))
def test_mixing_within_the_bound_brings_models_together(a, share):
    graph = Graph.from_matrix(a)
    if graph.rho == 0:
        return
    W = stack(len(a))
    mixed = graph.mix_(W.clone(), share / graph.rho)
    assert torch.allclose(mixed.mean(0), W.mean(0), atol=1e-12)
    assert float(graph.smoothness(mixed)) <= float(graph.smoothness(W)) * (1 + 1e-10)


SETTINGS = {
    "star": [{}, {"server": True}],
    "erdos-renyi": [{"probability": p} for p in (0.0, 0.3, 1.0)],
    "watts-strogatz": [{"neighbours": k, "rewire": p} for k in (0, 2, 4) for p in (0.0, 0.5, 1.0)],
    "blocks": [{"clusters": c} for c in (1, 3, 7)],
    "nearest": [
        {"by": by, "neighbours": k, "weights": w, "noise": noise}
        for by, k, w, noise in [
            ("labels", 1, "one", 0.0),
            ("means", 3, "gaussian", 0.0),
            ("labels", 99, "one", 0.5),
        ]
    ]
    + [{"by": "metadata", "path": "about.csv", "neighbours": 2}]
    + [{"by": "places", "neighbours": 2}, {"by": "places", "weights": "gaussian", "height_km": 3.0}],
    "kernel": [
        {"by": "means"},
        {"threshold": 0.0},
        {"by": "metadata", "path": "about.csv", "threshold": 0.5},
        {"by": "places", "threshold": 0.5},
    ],
    "file": [{"path": "graph.npz"}],
}
BUILDS = [(name, settings) for name in GRAPHS for settings in SETTINGS.get(name, [{}])]
every_maker = pytest.mark.parametrize(("name", "settings"), BUILDS, ids=[f"{n}-{g}" for n, g in BUILDS])


@pytest.fixture
def clients(tmp_path, monkeypatch):
    """Seven clients, a table about them, and a graph of them in a file."""
    monkeypatch.chdir(tmp_path)
    federation = fl.Federation.from_arrays(random_arrays([9, 30, 5, 12, 40, 9, 22]), labels=3, scale="none")
    places = np.random.default_rng(0).uniform([-180, -90, 0], [180, 90, 4_000], size=(7, 3))
    federation = replace(federation, places=Places.of(("lon", "lat", "height"), places))
    lines = [f"{name},{at % 3},{at * at / 7}" for at, name in enumerate(federation.clients)]
    (tmp_path / "about.csv").write_text("\n".join(["client,place,age", *lines]), encoding="utf-8")
    to_file(Graph.from_matrix(random_weights(federation.clients), federation.clients), "graph.npz")
    return federation


@every_maker
def test_every_maker(clients, name, settings):
    graph = build_graph(name, clients, 5, **settings)
    a = matrix_of(graph)
    assert graph.clients == clients.clients
    assert a.shape == (len(clients.clients) + graph.server,) * 2
    assert np.array_equal(a, a.T)
    assert (a >= 0).all()
    assert np.isfinite(a).all()
    assert not np.diagonal(a).any()
    assert np.array_equal(a, matrix_of(build_graph(name, clients, 5, **settings)))


ORDERED = {"ring", "path", "star", "grid", "watts-strogatz", "blocks"}  # where the order is the shape


@every_maker
def test_makers_go_by_names_not_places(clients, name, settings):
    if name in ORDERED:
        return
    turned = clients.reorder(clients.clients[::-1])
    graph = build_graph(name, turned, 5, **settings).align(clients.clients)
    assert np.allclose(matrix_of(graph), matrix_of(build_graph(name, clients, 5, **settings)), rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("random", {}),
        ("erdos-renyi", {"probability": 0.5}),
        ("watts-strogatz", {"rewire": 0.9}),
        ("blocks", {}),
        ("nearest", {"noise": 2.0, "neighbours": 2}),
        ("kernel", {"noise": 2.0}),
    ],
)
def test_another_seed_is_another_graph(clients, name, settings):
    one, two = (matrix_of(build_graph(name, clients, seed, **settings)) for seed in (0, 1))
    assert not np.array_equal(one, two)


def test_makers_take_what_is_given_and_settings():
    for name, make in GRAPHS.items():
        parameters = inspect.signature(make).parameters
        assert {"clients", "federation"} & set(parameters), name
        for key, parameter in parameters.items():
            assert (
                key in BUILDER_INPUTS or key == "path" or parameter.default is not inspect.Parameter.empty
            ), (
                name,
                key,
            )


@law
@given(st.one_of(weights, flat), st.integers(0, 10_000), st.data())
def test_a_shuffled_graph_differs_in_names_alone(a, seed, data):
    names = tuple(f"client {k}" for k in range(len(a)))
    graph = Graph.from_matrix(a, names)
    shuffled = graph.shuffle(seed)
    b = matrix_of(shuffled)
    assert shuffled.clients == names
    assert np.allclose(np.sort(a.sum(1)), np.sort(b.sum(1)), rtol=1e-12)
    assert np.array_equal(np.sort(a, axis=None), np.sort(b, axis=None))
    size = a.max(initial=0.0) + 1e-300
    values, others = (np.linalg.eigvalsh(plain(matrix)) for matrix in (a, b))
    assert np.abs(values - others).max() <= 1e-11 * len(a) * size
    assert np.array_equal(b, matrix_of(graph.shuffle(seed)))
    order = data.draw(st.permutations(names))
    assert np.array_equal(b, matrix_of(graph.align(order).shuffle(seed).align(names)))


def test_every_permutation_of_names_is_equally_likely():
    """Six permutations of three clients, from the weights of their three edges."""
    edges = [("a", "b", 1.0), ("b", "c", 2.0), ("a", "c", 3.0)]
    seen = [
        tuple(matrix_of(Graph.from_edges(edges).shuffle(seed))[np.triu_indices(3, 1)]) for seed in range(600)
    ]
    counts = [seen.count(kind) for kind in set(seen)]
    assert len(counts) == 6
    assert min(counts) > 60  # 100 expected; four standard deviations are 37
    assert max(counts) < 140


def test_a_server_stays_a_server_and_names_are_needed():
    star = Graph.star(["a", "b", "c"], server=True)
    assert np.array_equal(matrix_of(star.shuffle(1)), matrix_of(star))
    assert star.shuffle(1).server
    with pytest.raises(fl.InputError, match="a graph without names cannot be shuffled"):
        Graph.from_matrix(np.zeros((2, 2))).shuffle()


def test_large_graphs_are_sparse():
    names = [str(k) for k in range(DENSE_UP_TO + 1)]
    for graph in (
        fl.graph.grid(names),
        fl.graph.erdos_renyi(names, 0.002),
        fl.graph.watts_strogatz(names),
        fl.graph.blocks(names, 20, 0.05, 1e-4),
    ):
        assert isinstance(graph.weights, SparseWeights)
        values = np.linalg.eigvalsh(build_laplacian(graph.weights).toarray())
        assert graph.rho == pytest.approx(values[-1], rel=1e-4)
        assert graph.components == (values < 1e-9).sum()
        assert graph.lambda2 == pytest.approx(values[1], rel=1e-4, abs=1e-9)
