"""Laplacians: laws of smoothness and pull in every form, spectra that are known, and large graphs."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from fedlap.graph import Graph
from fedlap.graph.spectrum import build_laplacian
from fedlap.graph.weights import DENSE_UP_TO, CompleteWeights, DenseWeights, SparseWeights
from graphs import matrices, matrix_of, names, plain_laplacian
from property_settings import law

FORMS = {
    "dense": lambda a: Graph(None, DenseWeights(torch.from_numpy(a))),
    "sparse": lambda a: Graph(None, SparseWeights(csr_array(a))),
}


def stack(rows, seed=0, params=3):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, params)))


def plain_pull(a, ids, w, elsewhere):
    pulled = np.zeros_like(w)
    for at, k in enumerate(ids):
        for l in range(len(a)):  # noqa: E741 — the paper's ℓ
            if l in ids:
                pulled[at] += a[k, l] * (w[at] - w[ids.index(l)])
            elif elsewhere is not None:
                pulled[at] += a[k, l] * (w[at] - elsewhere[l])
    return pulled


@law
@given(matrices)
def test_laplacian_laws(a):
    graph = Graph.from_matrix(a)
    L = build_laplacian(graph.weights).toarray()
    values = np.linalg.eigvalsh(L)
    assert np.array_equal(L, L.T)
    assert np.abs(L.sum(0)).max() < 1e-12
    assert values.min() > -1e-12
    assert (values < 1e-10).sum() == graph.components
    assert (graph.lambda2 > 1e-10) == (graph.components == 1 and len(a) > 1)
    assert graph.rho == pytest.approx(values[-1], abs=1e-12)
    if len(a) > 1:
        assert graph.lambda2 == pytest.approx(values[1], abs=1e-12)
        assert a.sum(1).max() <= graph.rho + 1e-12
        assert graph.rho <= 2 * a.sum(1).max() + 1e-12
    assert graph.edges == (a > 0).sum() // 2


@law
@given(matrices, st.sampled_from(list(FORMS)))
def test_smoothness_is_half_the_double_sum(a, form):
    W = stack(len(a))
    double = sum(a[k, o] * float((W[k] - W[o]).square().sum()) for k in range(len(a)) for o in range(len(a)))
    smoothness = float(FORMS[form](a).smoothness(W))
    assert smoothness == pytest.approx(double / 2, abs=1e-10)
    assert smoothness == pytest.approx(np.trace(W.T.numpy() @ plain_laplacian(a) @ W.numpy()), abs=1e-10)


@law
@given(matrices, st.data())
def test_every_form_pulls_as_a_loop_does(a, data):
    n = len(a)
    weight = data.draw(st.sampled_from([0.0, 0.5, 2.0]))
    ids = data.draw(st.permutations(range(n)))[: data.draw(st.integers(1, n))]
    w, W = stack(len(ids), 1), stack(n, 2)
    cases = [(make(a), a) for make in FORMS.values()]
    full = weight * (np.ones((n, n)) - np.eye(n))
    cases += [(make(full), full) for make in FORMS.values()]
    cases.append((Graph(None, CompleteWeights(n, weight)), full))
    for graph, matrix in cases:
        for elsewhere in (None, W):
            expected = plain_pull(matrix, ids, w.numpy(), None if elsewhere is None else W.numpy())
            pulled = graph.pull(torch.tensor(ids), w, elsewhere)
            assert np.abs(pulled.numpy() - expected).max() < 1e-12


@law
@given(matrices)
def test_pulling_everyone_is_the_laplacian(a):
    W, ids = stack(len(a)), torch.arange(len(a))
    for make in FORMS.values():
        graph = make(a)
        for elsewhere in (None, stack(len(a), 5)):
            assert (
                np.abs(graph.pull(ids, W, elsewhere).numpy() - plain_laplacian(a) @ W.numpy()).max() < 1e-12
            )
        assert float(graph.smoothness(W)) == pytest.approx(float((W * graph.pull(ids, W)).sum()), abs=1e-10)


@law
@given(matrices)
def test_neighbours(a):
    for make in FORMS.values():
        graph = make(a)
        for place in range(len(a)):
            near, weights = graph.neighbours(place)
            assert sorted(near) == np.flatnonzero(a[place]).tolist()
            assert np.array_equal(a[place, near], weights)


def test_single_precision(graph):
    W = stack(6).float()
    pulled = graph.pull(torch.arange(6), W)
    assert pulled.dtype == torch.float32
    assert np.allclose(pulled, plain_laplacian(matrix_of(graph)) @ W.numpy(), atol=1e-5)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7])
def test_spectra_that_are_known(n):
    angles = np.pi * np.arange(n)
    ring = 2 - 2 * np.cos(2 * angles / n) if n > 2 else [0.0, 2.0][:n]
    known = {
        "complete": [0.0] + [n] * (n - 1),
        "path": 2 - 2 * np.cos(angles / n),
        "ring": ring,
        "star": sorted([0.0] + [1.0] * (n - 2) + [n] * (n > 1)),
        "empty": [0.0] * n,
    }
    for name, values in known.items():
        graph = getattr(Graph, name)(names(n))
        values = np.sort(values)
        assert graph.size == n
        assert graph.rho == pytest.approx(values[-1], abs=1e-12)
        assert graph.lambda2 == pytest.approx(values[1] if n > 1 else 0, abs=1e-12)
        assert np.allclose(np.linalg.eigvalsh(plain_laplacian(matrix_of(graph))), values, atol=1e-12)
        assert graph.components == (n if name == "empty" else 1)


def test_weights_scale_the_spectrum():
    for make in (Graph.complete, Graph.path, Graph.ring, Graph.star):
        one, two = make(names(6)), make(names(6), 2.5)
        assert two.rho == pytest.approx(2.5 * one.rho)
        assert two.lambda2 == pytest.approx(2.5 * one.lambda2)
    assert Graph.complete(names(6)).rho == 6
    assert Graph.complete(names(4), 0.0).components == 4


N = 2500


def test_a_large_ring_is_sparse_and_right():
    ring = Graph.ring(names(N))
    assert isinstance(ring.weights, SparseWeights)
    assert N > DENSE_UP_TO
    assert ring.rho == pytest.approx(4, rel=1e-9)
    assert ring.lambda2 == pytest.approx(2 - 2 * math.cos(2 * math.pi / N), rel=1e-6)
    assert (ring.components, ring.edges) == (1, N)
    W, ids = stack(N), torch.tensor([5, 0, 4, N - 1])
    pulled = ring.pull(ids, W[ids], W)
    assert torch.allclose(pulled, 2 * W[ids] - W[(ids + 1) % N] - W[ids - 1], atol=1e-12)


def test_other_large_graphs():
    path, star = Graph.path(names(N)), Graph.star(names(N))
    assert path.rho == pytest.approx(2 - 2 * math.cos(math.pi * (N - 1) / N), rel=1e-9)
    assert path.lambda2 == pytest.approx(2 - 2 * math.cos(math.pi / N), rel=1e-6)
    assert (star.rho, star.lambda2) == pytest.approx((N, 1), rel=1e-9)
    one_edge = Graph.from_edges([("0", "1", 3.0)], names(N))
    assert one_edge.components == N - 1
    assert (one_edge.rho, one_edge.lambda2) == pytest.approx((6, 0), rel=1e-9)
    assert isinstance(Graph.complete(names(N)).weights, CompleteWeights)
    assert Graph.complete(names(N)).rho == N


def test_a_large_random_graph_against_numpy():
    n = DENSE_UP_TO + 1
    rng = np.random.default_rng(0)
    pairs = {(min(k, o), max(k, o)) for k, o in rng.integers(0, n, (6_000, 2)).tolist() if k != o}
    edges = [(str(k), str(o), rng.uniform(0.5, 2)) for k, o in sorted(pairs)]
    graph = Graph.from_edges(edges, names(n))
    values = np.linalg.eigvalsh(plain_laplacian(matrix_of(graph)))
    assert graph.components == (values < 1e-10).sum()
    assert graph.rho == pytest.approx(values[-1], rel=1e-9)
    assert graph.lambda2 == pytest.approx(values[1], rel=1e-6, abs=1e-10)
    joined = Graph.from_matrix(graph.weights.matrix() + Graph.ring(names(n)).weights.matrix())
    values = np.linalg.eigvalsh(plain_laplacian(matrix_of(joined)))
    assert joined.components == 1
    assert joined.lambda2 == pytest.approx(values[1], rel=1e-6)


def test_sums_of_a_dense_graph_with_few_edges_run_along_lists():
    graph = Graph.ring([str(k) for k in range(600)], 2)
    plain = DenseWeights(graph.weights.array)
    vars(plain)["lists"] = None  # fills the cache of the property
    assert graph.weights.lists is not None
    W, w, ids = stack(600), stack(40, seed=1), torch.arange(5, 600, 15)
    assert (graph.weights.multiply(W) - plain.multiply(W)).abs().max() < 1e-12
    for others in (W, None):
        found, expected = (weights.sum_neighbours(ids, w, others) for weights in (graph.weights, plain))
        assert all((one - other).abs().max() < 1e-12 for one, other in zip(found, expected, strict=True))
    full = np.ones((600, 600)) - np.eye(600) + np.eye(600, k=1) + np.eye(600, k=-1)
    assert Graph.from_matrix(full).weights.lists is None
    assert Graph.ring([str(k) for k in range(400)], 2).weights.lists is None
