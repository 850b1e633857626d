"""Eigenvalues and components of a graph's Laplacian."""

import math
import sys
from typing import Literal

import numpy as np
from jaxtyping import Float64
from scipy.linalg import eigh_tridiagonal, eigvalsh
from scipy.sparse import csr_array, diags_array
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import ArpackNoConvergence, eigsh

from fedlap.graph.weights import DENSE_UP_TO, CompleteWeights, Weights

TOLERANCE = 1e-5
EXACT_UP_TO = 300  # vertices; above it iterating is faster than a full decomposition
STEPS = 2_000  # towards λ₂; past it another way is faster
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
        return _lanczos(L, _start(weights), "largest", sys.maxsize)


def _lanczos(
    L: csr_array, v: Float64[np.ndarray, "vertex"], end: Literal["largest", "second"], most: int
) -> float:
    """The largest eigenvalue, or the smallest but for that of 1; or NaN after so many steps.

    No restarts, which would forget what tells eigenvalues apart that are close, and no basis is kept:
    rounding then finds some of them twice, but none that are not there.
    """
    v = v - v.mean() if end == "second" else v
    v, before = v / np.linalg.norm(v), np.zeros_like(v)
    diagonal, beside = [], [0.0]
    for step in range(most):
        u = L @ v - beside[-1] * before
        diagonal.append(float(u @ v))
        u -= diagonal[-1] * v
        if end == "second":
            u -= u.mean()  # what rounding brings back of 1
        beside.append(float(np.linalg.norm(u)))
        ended = beside[-1] <= 1e-14 * diagonal[-1]
        if step % 25 == 24 or ended:
            at = step if end == "largest" else 0
            value, vector = eigh_tridiagonal(diagonal, beside[1:-1], select="i", select_range=(at, at))
            if beside[-1] * abs(vector[-1, 0]) <= TOLERANCE * value[0] or ended:  # as far as it can be wrong
                return float(value[0])
        v, before = u / beside[-1], v
    return math.nan


def second_smallest(weights: Weights) -> float:
    """λ₂, positive where the graph is connected; for large graphs from above, to about TOLERANCE.

    Where many eigenvalues are close to it, as in rings and grids, steps are many, but then the graph has
    narrow places and L is factorised with little fill; of other graphs the factors would not fit memory.
    """
    if isinstance(weights, CompleteWeights):
        return largest(weights)
    if components(weights) > 1 or weights.size == 1:
        return 0.0
    L = laplacian(weights)
    if weights.size <= DENSE_UP_TO:
        return float(eigvalsh(L.toarray())[1])
    # Squares, so that no cluster of neighbours in order has a sum near zero and stays unseen.
    found = _lanczos(L, np.cos(np.arange(weights.size) ** 2.0), "second", STEPS)
    if not math.isnan(found):
        return found
    shift = -1e-6 * L.diagonal().max()  # just below zero, where L has an eigenvalue
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
