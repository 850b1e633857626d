"""The check on late models: μRηd at most 1, with the largest degree d."""

import numpy as np
import pytest
from hypothesis import given

import fedlap as fl
from fedlap.algorithms.coupling import Coupling
from fedlap.graph import weights
from graphs import matrices, matrix_of, names

KINDS = {
    "complete": fl.Graph.complete(names(6), 0.5),
    "dense": fl.Graph.from_edges([("a", "b", 2.0), ("b", "c", 0.5), ("c", "d", 1.0)]),
    "empty": fl.Graph.empty(names(3)),
    "single": fl.Graph.complete(names(1)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_largest_degree_is_that_of_the_matrix(kind):
    graph = KINDS[kind]
    assert graph.largest_degree == pytest.approx(matrix_of(graph).sum(1).max(), rel=1e-14)


def test_the_largest_degree_of_a_sparse_graph_and_of_one_with_a_server(monkeypatch):
    monkeypatch.setattr(weights, "DENSE_UP_TO", 2)
    sparse = fl.Graph.star(names(5), 0.3)
    assert type(sparse.weights).__name__ == "SparseWeights"
    assert sparse.largest_degree == pytest.approx(4 * 0.3)
    assert fl.Graph.star(names(5), 0.3, server=True).largest_degree == pytest.approx(0.3)  # of clients


@given(matrices)
def test_the_largest_degree_is_below_the_largest_eigenvalue(matrix):
    """ρ ≥ d N/(N − 1), so μRηρ ≤ 1, as of the default strength, is enough for late models."""
    graph = fl.Graph.from_matrix(matrix)
    least = graph.largest_degree * graph.size / max(1, graph.size - 1)
    assert graph.rho >= least * (1 - 1e-12)
    coupling = Coupling(graph, None, lr=0.03, repeats=5)
    assert coupling.product <= 1 + 1e-12
    assert coupling.tolerates_delays
    assert coupling.explain_delays() is None


@pytest.mark.parametrize(
    ("product", "tolerated"), [(0.999, True), (1.0, True), (1 + 1e-9, False), (1.6, False)]
)
def test_both_sides_of_one(product, tolerated):
    graph = fl.Graph.complete(names(10), 0.7)
    method = fl.DFedU(graph, strength=product / (0.03 * 4 * 9 * 0.7), lr=0.03, local_steps=4)
    assert method.coupling.is_stable
    assert method.coupling.delay_product == pytest.approx(product)
    assert method.coupling.tolerates_delays is tolerated
    reason = method.coupling.explain_delays()
    assert (reason is None) is tolerated
    if reason is not None:
        assert reason == (
            f"strength = {method.strength:g} is too large for late models: lr·R·strength·degree = "
            f"0.03·4·{method.strength:g}·6.3 = {product:.4g} > 1, so they may lead to divergence; use a "
            "strength of at most 1.323, or staleness = 0"
        )
        assert fl.DFedU(graph, strength=1.322, lr=0.03, local_steps=4).coupling.tolerates_delays


def test_bipartite_graphs_tolerate_late_models_at_every_stable_strength():
    for graph in (fl.Graph.ring(names(8)), fl.Graph.from_matrix(np.kron([[0, 1], [1, 0]], np.ones((4, 4))))):
        coupling = Coupling(graph, 2 / (0.1 * graph.rho), lr=0.1, repeats=1)
        assert coupling.product == pytest.approx(2)
        assert coupling.tolerates_delays


def test_other_rules_are_not_covered():
    graph = fl.Graph.ring(names(5))
    implicit = fl.DFedU(graph, strength=0.01, mixing="implicit", exchanges=2)
    assert "mixing = implicit is not covered" in implicit.coupling.explain_delays()
    smoothed = Coupling(graph, 0.01, lr=0.01, repeats=1, smoothing=1.0)
    assert "smoothing is not covered" in smoothed.explain_delays()
