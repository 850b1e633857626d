"""Parts of a graph: their sums over neighbours and over edges are those of the whole graph."""

import numpy as np
import pytest
import torch

from fedlap.graph import Graph
from fedlap.graph.vertex_edges import VertexEdges
from random_inputs import random_weights

NAMES = [f"c{k}" for k in range(13)]
PARTS = [range(5), range(5, 6), range(6, 13)]


@pytest.fixture
def graph():
    return Graph.from_matrix(random_weights(NAMES), NAMES)


@pytest.fixture
def models():
    return torch.randn(13, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_chosen_vertices_have_all_their_neighbours(graph, models):
    expected = graph.apply_laplacian(models)
    for part, edges in zip(PARTS, VertexEdges.cut(graph, PARTS), strict=True):
        chosen = np.array(part[::2])
        joined, vertices = edges.join_neighbours(chosen)
        assert vertices[: len(chosen)].tolist() == chosen.tolist()
        assert joined.rho == graph.rho
        pulled = joined.apply_laplacian(models[vertices])[: len(chosen)]
        torch.testing.assert_close(pulled, expected[chosen], rtol=1e-13, atol=1e-13)


def test_sums_over_edges_add_up(graph, models):
    total = 0.0
    for edges in VertexEdges.cut(graph, PARTS):
        halved, vertices = edges.halve_outer_edges()
        total += float(halved.smoothness(models[vertices]))
    assert total == pytest.approx(float(graph.smoothness(models)), rel=1e-12)


def test_outer_edges_are_known_at_both_ends(graph):
    ends = [edges.list_outer_edges() for edges in VertexEdges.cut(graph, PARTS)]
    here = {pair for begin, end in ends for pair in zip(begin.tolist(), end.tolist(), strict=True)}
    assert here == {(end, begin) for begin, end in here}
    assert len(here) == sum(
        graph.weights.matrix()[[k]].toarray()[0, other] != 0
        for part in PARTS for k in part for other in range(13) if other not in part
    )  # fmt: skip
