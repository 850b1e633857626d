"""Eigenvalues and components of a graph's Laplacian."""

import numpy as np
from jaxtyping import Float64
from scipy.linalg import eigvalsh
from scipy.sparse import csr_array, diags_array
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import eigsh

from fedlap.graph.weights import DENSE_UP_TO, CompleteWeights, Weights


def laplacian(weights: Weights) -> csr_array:
    """L = D − A."""
    a = weights.matrix()
    return csr_array(diags_array(np.asarray(a.sum(axis=1)).ravel()) - a)


def extremes(weights: Weights) -> tuple[float, float]:
    """λ₂ and ρ, the second smallest and the largest eigenvalue of L."""
    if isinstance(weights, CompleteWeights):
        value = weights.size * weights.weight if weights.size > 1 else 0.0
        return value, value
    L = laplacian(weights)
    if weights.size == 1 or not L.nnz:
        return 0.0, 0.0
    if weights.size <= DENSE_UP_TO:
        values: Float64[np.ndarray, vertex] = eigvalsh(L.toarray())
        return max(0.0, float(values[1])), max(0.0, float(values[-1]))
    start = np.cos(np.arange(weights.size))  # any fixed vector that no symmetry makes an eigenvector
    largest = float(eigsh(L, k=1, which="LA", v0=start, return_eigenvectors=False)[0])
    if components(weights) > 1:
        return 0.0, largest
    near_zero = eigsh(L, k=2, sigma=-1e-6 * largest, v0=start, return_eigenvectors=False)
    return float(max(near_zero)), largest


def components(weights: Weights) -> int:
    """Number of connected components."""
    if isinstance(weights, CompleteWeights):
        return 1 if weights.weight > 0 else weights.size
    number, _ = connected_components(weights.matrix(), directed=False)
    return int(number)
