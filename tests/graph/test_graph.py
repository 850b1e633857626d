"""Graphs from shapes, edges and matrices, the order of their clients, and mistakes."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import coo_array, csc_matrix, csr_array

import fedlap as fl
from fedlap.graph import SERVER
from fedlap.graph.weights import SparseWeights
from graphs import matrices, matrix_of, names
from property_settings import law
from random_inputs import random_weights

Graph = fl.Graph
ABC = ("a", "b", "c")


def test_builders_join_the_right_clients():
    four = ("d", "a", "c", "b")
    edges = {
        "path": [(0, 1), (1, 2), (2, 3)],
        "ring": [(0, 1), (1, 2), (2, 3), (3, 0)],
        "star": [(0, 1), (0, 2), (0, 3)],
        "complete": [(k, o) for k in range(4) for o in range(k)],
        "empty": [],
    }
    for name, pairs in edges.items():
        graph = getattr(Graph, name)(four)
        expected = np.zeros((4, 4))
        for k, o in pairs:
            expected[k, o] = expected[o, k] = 1
        assert graph.clients == four
        assert np.array_equal(matrix_of(graph), expected)
        assert graph.edges == len(pairs)
    assert Graph.ring(("a", "b")).edges == 1
    assert Graph.ring(("a",)).edges == 0


def test_a_star_with_a_server():
    graph = Graph.star(ABC, 2.0, server=True)
    assert (graph.clients, graph.size, graph.server) == (ABC, 4, True)
    expected = np.zeros((4, 4))
    expected[3, :3] = expected[:3, 3] = 2
    assert np.array_equal(matrix_of(graph), expected)
    assert graph.rho == pytest.approx(8)
    turned = graph.align(("c", "a", "b"))
    assert (turned.clients, turned.server) == (("c", "a", "b"), True)
    assert np.array_equal(matrix_of(turned), expected)
    with pytest.raises(fl.InputError, match="a client is named 'server'"):
        Graph.star(("a", SERVER), server=True)


def test_from_edges():
    graph = Graph.from_edges([("c", "a", 0.5), ("a", "b")])
    assert graph.clients == ("c", "a", "b")
    assert np.array_equal(matrix_of(graph), [[0, 0.5, 0], [0.5, 0, 1], [0, 1, 0]])
    named = Graph.from_edges([("c", "a", 0.5)], ("a", "b", "c"))
    assert np.array_equal(matrix_of(named), [[0, 0, 0.5], [0, 0, 0], [0.5, 0, 0]])
    assert named.components == 2


@pytest.mark.parametrize(
    "kind",
    [np.asarray, np.ndarray.tolist, torch.from_numpy, coo_array, csr_array, csc_matrix],
    ids=["array", "list", "tensor", "coo", "csr", "csc"],
)
def test_from_matrix_takes_any_kind(kind):
    a = random_weights(range(5))
    graph = Graph.from_matrix(kind(a))
    assert graph.clients is None
    assert np.array_equal(matrix_of(graph), a)


@law
@given(matrices, st.data())
def test_aligned_permutes(a, data):
    n = len(a)
    order = data.draw(st.permutations(range(n)))
    clients = names(n)
    wanted = tuple(clients[k] for k in order)
    for graph in (Graph.from_matrix(a, clients), Graph(tuple(clients), SparseWeights(csr_array(a)))):
        turned = graph.align(wanted)
        assert turned.clients == wanted
        assert np.array_equal(matrix_of(turned), a[np.ix_(order, order)])
        assert np.array_equal(matrix_of(turned.align(clients)), a)
    assert Graph.complete(clients).align(wanted).clients == wanted
    bare = Graph.from_matrix(a).align(wanted)
    assert bare.clients == wanted
    assert np.array_equal(matrix_of(bare), a)


def test_aligned_refuses_other_clients():
    for graph in (Graph.path(ABC), Graph.complete(ABC), Graph.star(ABC, server=True)):
        with pytest.raises(fl.InputError, match="client 'd' of the data is not in the graph"):
            graph.align(("a", "b", "d"))
        with pytest.raises(fl.InputError, match="'c' in the graph is not a client of the data"):
            graph.align(("b", "a"))
    with pytest.raises(fl.InputError, match="the graph has 3 vertices; expected 2, the number of clients"):
        Graph.from_matrix(np.zeros((3, 3))).align(("a", "b"))


NAN = math.nan


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ([[0, 1], [2, 0]], r"weights at \(0, 1\) and its mirror differ by 1"),
        ([[0, 1], [0, 0]], r"weights at \(0, 1\) and its mirror differ"),
        ([[0, -1], [-1, 0]], r"weight at \(0, 1\) is -1; expected zero or more"),
        ([[0, NAN], [NAN, 0]], r"weight at \(0, 1\) is NaN or infinite"),
        ([[0, math.inf], [math.inf, 0]], r"weight at \(0, 1\) is NaN or infinite"),
        ([[0, 1], [1, 3]], r"entry \(1, 1\) on the diagonal is 3; expected zero"),
        ([[0, 1, 0], [1, 0, 0]], r"shape \(2, 3\); expected a square matrix"),
        (np.zeros((0, 0)), "expected a square matrix"),
        ([0, 1], "expected a square matrix"),
    ],
)
def test_matrices_that_cannot_be(matrix, message):
    matrix = np.array(matrix, dtype=float)
    for kind in (np.asarray, torch.from_numpy, *([csr_array] if matrix.ndim == 2 and matrix.size else [])):
        with pytest.raises(fl.InputError, match=message) as error:
            Graph.from_matrix(kind(matrix))
        assert "\n" not in str(error.value)


def test_a_wrong_entry_is_called_by_its_clients():
    with pytest.raises(fl.InputError, match=r"\('b', 'c'\) is -2"):
        Graph.from_matrix([[0, 1, 0], [1, 0, -2], [0, -2, 0]], ABC)
    with pytest.raises(fl.InputError, match="a 2×2 matrix for 3 clients"):
        Graph.from_matrix([[0, 1], [1, 0]], ABC)


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        (
            [("anna", "berta"), ("anna", "brta")],
            "unknown client in graph's edges 'brta'; did you mean 'berta'",
        ),
        ([("anna", "xyz")], "unknown client .* 'xyz'; known: anna, berta"),
        ([("anna", "anna")], "client 'anna' is joined to itself"),
        ([("anna", "berta"), ("berta", "anna", 2.0)], "between 'berta' and 'anna' is listed twice"),
        ([("anna", "berta", -1.0)], "weight -1.0; expected a finite number of at least zero"),
        ([("anna", "berta", NAN)], "weight nan"),
        ([("anna", "berta", math.inf)], "weight inf"),
    ],
)
def test_edges_that_cannot_be(edges, message):
    with pytest.raises(fl.InputError, match=message):
        Graph.from_edges(edges, ("anna", "berta"))


@pytest.mark.parametrize("make", [Graph.complete, Graph.path, Graph.ring, Graph.star, Graph.empty])
def test_names_that_cannot_be(make):
    with pytest.raises(fl.InputError, match="client 'a' is named twice"):
        make(("a", "b", "a"))
    with pytest.raises(fl.InputError, match="clients is empty; pass at least one name"):
        make(())


@pytest.mark.parametrize("make", [Graph.complete, Graph.path, Graph.ring, Graph.star])
def test_weights_that_cannot_be(make):
    for weight in (-1.0, NAN, math.inf):
        with pytest.raises(fl.InputError, match="expected a finite number of at least zero"):
            make(ABC, weight)
