"""Random weights, names of clients, and the matrices and edges of a graph."""

import numpy as np
from hypothesis import strategies as st

from random_inputs import random_weights

matrices = st.builds(
    lambda n, seed, density: random_weights(range(n), seed, density),
    st.integers(1, 9),
    st.integers(0, 10_000),
    st.sampled_from([0.0, 0.2, 0.5, 1.0]),
)


def matrix_of(graph):
    return graph.weights.matrix().toarray()


def names(number):
    return [str(k) for k in range(number)]


def edges_of(graph):
    return {(int(k), int(o)) for k, o in np.argwhere(np.triu(matrix_of(graph)))}


def plain_laplacian(a):
    return np.diag(a.sum(1)) - a


def laplacian(graph):
    a = graph.weights.matrix().toarray()
    return np.diag(a.sum(1)) - a
