"""Where the vertices of a graph are drawn."""

import numpy as np
from jaxtyping import Float64
from scipy.linalg import eigh
from scipy.sparse import csr_array, diags_array, eye_array
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

from fedlap.graph.description import RESTARTS
from fedlap.graph.weights import DENSE_UP_TO

SPRINGS_UP_TO = 500  # vertices of a component; above it two eigenvectors are the positions
ITERATIONS = 200  # of the springs

Places = Float64[np.ndarray, "vertex 2"]


def layout(matrix: csr_array) -> Places:
    """Neighbours near each other; components side by side, each on ground that goes with its size."""
    part = connected_components(matrix, directed=False)[1]
    own = np.split(np.argsort(part, kind="stable"), np.cumsum(np.bincount(part))[:-1])
    own.sort(key=len, reverse=True)
    at = np.empty((matrix.shape[0], 2))
    radii = np.sqrt([len(some) for some in own])
    for some, radius, centre in zip(own, radii, _packed(radii), strict=True):
        at[some] = centre + 0.85 * radius * _connected(csr_array(matrix[some][:, some]))
    return at


def _packed(radii: Float64[np.ndarray, "_"]) -> Places:
    """Centres of circles of these radii, the largest first, in lines of about the same length."""
    width = max(2 * radii[0], 1.25 * np.sqrt(np.square(2 * radii).sum()))
    centres, x, y, height = [], 0.0, 0.0, 2 * radii[0]
    for radius in radii:
        if x + 2 * radius > width * (1 + 1e-9):
            x, y, height = 0.0, y - height, 2 * radius
        centres.append((x + radius, y - radius))
        x += 2 * radius
    return np.array(centres)


def _connected(matrix: csr_array) -> Places:
    """Of a connected graph, within the unit circle."""
    if matrix.shape[0] <= 2:  # which have no two eigenvectors beside the constant one
        return np.array([[[0.0, 0.0]], [[-0.5, 0.0], [0.5, 0.0]]][matrix.shape[0] - 1])
    at = _spectral(matrix)
    if matrix.shape[0] <= SPRINGS_UP_TO:
        at = _springs(matrix, at)
    at = at - at.mean(0)
    return np.asarray(at / np.sqrt(np.square(at).sum(1)).max())


def _spectral(matrix: csr_array) -> Places:
    """Two slow eigenvectors of the random walk on the graph; the slowest one is constant."""
    root = 1 / np.sqrt(np.asarray(matrix.sum(axis=1)).ravel())
    left = csr_array(eye_array(len(root)) - diags_array(root) @ matrix @ diags_array(root))
    if matrix.shape[0] <= DENSE_UP_TO:
        vectors = eigh(left.toarray(), subset_by_index=(1, 2))[1]
    else:
        vectors = _iterated(left, 1 / root)
    return np.asarray(vectors * root[:, None])


def _iterated(left: csr_array, first: Float64[np.ndarray, "vertex"]) -> Places:
    """The two eigenvectors of a large graph beside the first; nearly, which is enough for a picture."""
    first = first / np.linalg.norm(first)
    moved = LinearOperator(left.shape, lambda v: left @ v + 2 * first * (first @ v), dtype=float)
    start = np.cos(np.arange(left.shape[0]))  # fixed, so that the same graph always gives the same picture
    try:
        found = eigsh(moved, k=2, which="SA", v0=start, ncv=40, tol=1e-2, maxiter=RESTARTS)
        return np.asarray(found[1])
    except ArpackNoConvergence:  # a graph that is nearly cut in two, which is cheap to factor
        return np.asarray(eigsh(left.tocsc(), k=3, sigma=-1e-9, v0=start)[1][:, 1:])


def _springs(matrix: csr_array, start: Places) -> Places:
    """Edges as springs, from these positions on."""
    import networkx  # type: ignore[import-untyped]

    graph = networkx.from_scipy_sparse_array(matrix)
    # Those that eigenvectors do not tell apart are told apart by a circle.
    angle = 2 * np.pi * np.arange(len(start)) / len(start)
    spread = start / np.abs(start).max() + 0.3 * np.stack([np.cos(angle), np.sin(angle)], 1)
    found = networkx.spring_layout(graph, pos=dict(enumerate(spread)), iterations=ITERATIONS, seed=0)
    return np.array([found[place] for place in range(len(start))])
