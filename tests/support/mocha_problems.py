"""Problems that MOCHA is trained on, as arrays and as a federation with its graph."""

import numpy as np

import fedlap as fl
from random_inputs import random_arrays, random_weights

OUTPUTS, SEED, ETA, L2 = 3, 11, 0.3, 0.1


def problem(counts, real):
    """Features with a one and targets by client, the same as a federation, a graph, and its Laplacian."""
    arrays = random_arrays(counts, labels=OUTPUTS, real=real)
    federation = fl.Federation.from_arrays(
        arrays, test_share=0, labels=None if real else OUTPUTS, scale="none"
    )
    data = {
        k: (np.hstack([x, np.ones((len(x), 1))]), y if real else 2.0 * np.eye(OUTPUTS)[y] - 1)
        for k, (x, y) in arrays.items()
    }
    matrix = random_weights(federation.clients)
    graph = fl.Graph.from_matrix(matrix, federation.clients)
    return data, federation, graph, np.diag(matrix.sum(1)) - matrix


def train_method(method, federation, rounds, model=None, **schedule):
    schedule = {"batch": "all", "seed": SEED, "dtype": "float64", "evaluate_every": 0, **schedule}
    return fl.fit(method, federation, model or fl.models.linear(l2=L2), rounds=rounds, **schedule)


def flat(W):
    """(client, output, feature and one) as rows of weights, then biases."""
    return np.hstack([W[:, :, :-1].reshape(len(W), -1), W[:, :, -1]])
