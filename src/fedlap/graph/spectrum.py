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

EIGENVALUE_TOLERANCE = 1e-5
EXACT_UP_TO = 300  # vertices; iterating is faster than a full decomposition of larger graphs
LANCZOS_STEPS = 2_000  # steps towards λ₂, after which factorising is faster
RESTART_BUDGET = 1_000_000  # vertices × restarts of ARPACK, after which Lanczos without restarts is faster


def build_laplacian(weights: Weights) -> csr_array:
    """Build L = D − A."""
    a = weights.matrix()
    return csr_array(diags_array(np.asarray(a.sum(axis=1)).ravel()) - a)


def compute_rho(weights: Weights) -> float:
    """Compute ρ, the largest eigenvalue of L; for large graphs from below, to about EIGENVALUE_TOLERANCE."""
    if isinstance(weights, CompleteWeights):
        return weights.size * weights.weight if weights.size > 1 else 0.0
    L = build_laplacian(weights)
    if not L.nnz:
        return 0.0
    if weights.size <= EXACT_UP_TO:
        return float(eigvalsh(L.toarray())[-1])
    settings = {
        "k": 1,
        "which": "LA",
        "tol": EIGENVALUE_TOLERANCE,
        "maxiter": max(10, RESTART_BUDGET // weights.size),
    }
    try:
        return float(eigsh(L, v0=_build_start_vector(weights), return_eigenvectors=False, **settings)[0])
    except ArpackNoConvergence:
        return _run_lanczos(L, _build_start_vector(weights), "largest", sys.maxsize)


def _run_lanczos(
    L: csr_array, v: Float64[np.ndarray, "vertex"], end: Literal["largest", "second"], most: int
) -> float:
    """Compute the largest eigenvalue, or the second smallest (orthogonal to 1); NaN after `most` steps.

    Restarts would discard the vectors that separate close eigenvalues, so there are none; no basis is stored.
    Rounding then finds some eigenvalues twice, but no spurious ones.
    """
    v = v - v.mean() if end == "second" else v
    v, previous = v / np.linalg.norm(v), np.zeros_like(v)
    diagonal, off_diagonal = [], [0.0]
    for step in range(most):
        u = L @ v - off_diagonal[-1] * previous
        diagonal.append(float(u @ v))
        u -= diagonal[-1] * v
        if end == "second":
            u -= u.mean()  # rounding reintroduces a component along 1
        off_diagonal.append(float(np.linalg.norm(u)))
        breakdown = off_diagonal[-1] <= 1e-14 * diagonal[-1]
        if step % 25 == 24 or breakdown:
            index = step if end == "largest" else 0
            value, vector = eigh_tridiagonal(
                diagonal, off_diagonal[1:-1], select="i", select_range=(index, index)
            )
            error_bound = off_diagonal[-1] * abs(vector[-1, 0])
            if error_bound <= EIGENVALUE_TOLERANCE * value[0] or breakdown:
                return float(value[0])
        v, previous = u / off_diagonal[-1], v
    return math.nan


def compute_lambda2(weights: Weights) -> float:
    """Compute λ₂, positive if the graph is connected; if large, from above to about EIGENVALUE_TOLERANCE.

    If many eigenvalues are close to λ₂, as in rings and grids, Lanczos needs many steps; but then the graph
    has small separators and L is factorised with little fill. The factors of other graphs would not fit into
    memory.
    """
    if isinstance(weights, CompleteWeights):
        return compute_rho(weights)
    if count_components(weights) > 1 or weights.size == 1:
        return 0.0
    L = build_laplacian(weights)
    if weights.size <= DENSE_UP_TO:
        return float(eigvalsh(L.toarray())[1])
    # Without the squares, a cluster of consecutive vertices could sum to nearly zero and be missed.
    found = _run_lanczos(L, np.cos(np.arange(weights.size) ** 2.0), "second", LANCZOS_STEPS)
    if not math.isnan(found):
        return found
    shift = -1e-6 * L.diagonal().max()  # just below the eigenvalue zero of L
    return float(max(eigsh(L, k=2, sigma=shift, v0=_build_start_vector(weights), return_eigenvectors=False)))


def _build_start_vector(weights: Weights) -> Float64[np.ndarray, "vertex"]:
    """Return a fixed initial vector, so that the same graph always gives the same number."""
    return np.asarray(np.cos(np.arange(weights.size)))


def count_components(weights: Weights) -> int:
    """Count connected components."""
    if isinstance(weights, CompleteWeights):
        return 1 if weights.weight > 0 else weights.size
    number, _ = connected_components(weights.matrix(), directed=False)
    return int(number)
