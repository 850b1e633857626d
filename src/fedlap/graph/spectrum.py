"""Eigenvalues and components of a graph's Laplacian."""

import numpy as np
from jaxtyping import Float64
from scipy.linalg import eigh_tridiagonal, eigvalsh
from scipy.sparse import csr_array, diags_array
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import ArpackNoConvergence, eigsh

from fedlap.graph.weights import DENSE_UP_TO, CompleteWeights, Weights

TOLERANCE = 1e-5
EXACT_UP_TO = 300  # vertices; above it iterating is faster than a full decomposition
RESTARTS = 1_000_000  # of the iteration, over the number of vertices; past it another way is faster


def laplacian(weights: Weights) -> csr_array:
    """L = D − A."""
    a = weights.matrix()
    return csr_array(diags_array(np.asarray(a.sum(axis=1)).ravel()) - a)


def largest(weights: Weights) -> float:
    """ρ, the largest eigenvalue of L; for large graphs from below, to about TOLERANCE."""
    if isinstance(weights, CompleteWeights):
        return weights.size * weights.weight if weights.size > 1 else 0.0
    L = laplacian(weights)
    if not L.nnz:
        return 0.0
    if weights.size <= EXACT_UP_TO:
        return float(eigvalsh(L.toarray())[-1])
    settings = {"k": 1, "which": "LA", "tol": TOLERANCE, "maxiter": max(10, RESTARTS // weights.size)}
    try:
        return float(eigsh(L, v0=_start(weights), return_eigenvectors=False, **settings)[0])
    except ArpackNoConvergence:
        return _lanczos(L, _start(weights))


def _lanczos(L: csr_array, v: Float64[np.ndarray, "vertex"]) -> float:
    """The largest eigenvalue, as above, where many others are close to it.

    No restarts, which would forget what tells them apart, and no basis is kept: rounding then finds some
    eigenvalues twice, but none that are not there.
    """
    v, before = v / np.linalg.norm(v), np.zeros_like(v)
    diagonal, beside = [], [0.0]
    while True:
        u = L @ v - beside[-1] * before
        diagonal.append(float(u @ v))
        u -= diagonal[-1] * v
        beside.append(float(np.linalg.norm(u)))
        last = len(diagonal) - 1
        if last % 25 == 24 or beside[-1] <= 1e-14 * diagonal[-1]:
            value, vector = eigh_tridiagonal(diagonal, beside[1:-1], select="i", select_range=(last, last))
            if beside[-1] * abs(vector[-1, 0]) <= TOLERANCE * value[0]:  # as far as it can be wrong
                return float(value[0])
        v, before = u / beside[-1], v


def second_smallest(weights: Weights) -> float:
    """λ₂, positive where the graph is connected."""
    if isinstance(weights, CompleteWeights):
        return largest(weights)
    if components(weights) > 1 or weights.size == 1:
        return 0.0
    L = laplacian(weights)
    if weights.size <= DENSE_UP_TO:
        return float(eigvalsh(L.toarray())[1])
    shift = -1e-6 * largest(weights)  # just below zero, where L has an eigenvalue
    return float(max(eigsh(L, k=2, sigma=shift, v0=_start(weights), return_eigenvectors=False)))


def _start(weights: Weights) -> Float64[np.ndarray, "vertex"]:
    """A fixed vector to iterate from, so that the same graph always gives the same number."""
    return np.asarray(np.cos(np.arange(weights.size)))


def components(weights: Weights) -> int:
    """Number of connected components."""
    if isinstance(weights, CompleteWeights):
        return 1 if weights.weight > 0 else weights.size
    number, _ = connected_components(weights.matrix(), directed=False)
    return int(number)
