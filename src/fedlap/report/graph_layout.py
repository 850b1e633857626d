"""Layout of a graph: positions of its vertices in a figure."""

import numpy as np
from jaxtyping import Float64
from scipy.linalg import eigh
from scipy.sparse import csr_array, diags_array, eye_array
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

from fedlap.graph.description import EIGEN_RESTARTS
from fedlap.graph.weights import DENSE_UP_TO

SPRINGS_UP_TO = 500  # vertices of a component; larger ones use two eigenvectors as positions
ITERATIONS = 200  # of the spring layout

Positions = Float64[np.ndarray, "vertex 2"]


def compute_layout(matrix: csr_array) -> Positions:
    """Compute positions: neighbours close together, components side by side with area by size."""
    component = connected_components(matrix, directed=False)[1]
    components = np.split(np.argsort(component, kind="stable"), np.cumsum(np.bincount(component))[:-1])
    components.sort(key=len, reverse=True)
    positions = np.empty((matrix.shape[0], 2))
    radii = np.sqrt([len(members) for members in components])
    for members, radius, centre in zip(components, radii, _pack_circles(radii), strict=True):
        positions[members] = centre + 0.85 * radius * _layout_component(
            csr_array(matrix[members][:, members])
        )
    return positions


def _pack_circles(radii: Float64[np.ndarray, "_"]) -> Positions:
    """Return centres of circles of the given radii, largest first, in lines of similar length."""
    width = max(2 * radii[0], 1.25 * np.sqrt(np.square(2 * radii).sum()))
    centres, x, y, height = [], 0.0, 0.0, 2 * radii[0]
    for radius in radii:
        if x + 2 * radius > width * (1 + 1e-9):
            x, y, height = 0.0, y - height, 2 * radius
        centres.append((x + radius, y - radius))
        x += 2 * radius
    return np.array(centres)


def _layout_component(matrix: csr_array) -> Positions:
    """Compute positions of a connected graph within the unit circle."""
    if matrix.shape[0] <= 2:  # too few for two eigenvectors after the constant one
        return np.array([[[0.0, 0.0]], [[-0.5, 0.0], [0.5, 0.0]]][matrix.shape[0] - 1])
    positions = _spectral_layout(matrix)
    if matrix.shape[0] <= SPRINGS_UP_TO:
        positions = _spring_layout(matrix, positions)
    positions = positions - positions.mean(0)
    return np.asarray(positions / np.sqrt(np.square(positions).sum(1)).max())


def _spectral_layout(matrix: csr_array) -> Positions:
    """Return the two slowest non-constant eigenvectors of the random walk on the graph."""
    root = 1 / np.sqrt(np.asarray(matrix.sum(axis=1)).ravel())
    laplacian = csr_array(eye_array(len(root)) - diags_array(root) @ matrix @ diags_array(root))
    if matrix.shape[0] <= DENSE_UP_TO:
        vectors = eigh(laplacian.toarray(), subset_by_index=(1, 2))[1]
    else:
        vectors = _iterate_eigenvectors(laplacian, 1 / root)
    return np.asarray(vectors * root[:, None])


def _iterate_eigenvectors(laplacian: csr_array, first: Float64[np.ndarray, "vertex"]) -> Positions:
    """Return eigenvectors two and three of a large graph, to a tolerance that suffices for a figure."""
    first = first / np.linalg.norm(first)
    # The constant eigenvector moves from eigenvalue 0 to 2, the top of the spectrum.
    shifted = LinearOperator(laplacian.shape, lambda v: laplacian @ v + 2 * first * (first @ v), dtype=float)
    start = np.cos(np.arange(laplacian.shape[0]))  # fixed, so that equal graphs give equal figures
    try:
        found = eigsh(shifted, k=2, which="SA", v0=start, ncv=40, tol=1e-2, maxiter=EIGEN_RESTARTS)
        return np.asarray(found[1])
    except ArpackNoConvergence:  # a nearly disconnected graph is cheap to factor
        return np.asarray(eigsh(laplacian.tocsc(), k=3, sigma=-1e-9, v0=start)[1][:, 1:])


def _spring_layout(matrix: csr_array, start: Positions) -> Positions:
    """Move vertices by springs along edges, starting from the given positions."""
    import networkx  # type: ignore[import-untyped]

    graph = networkx.from_scipy_sparse_array(matrix)
    # A circle separates vertices that have equal eigenvector entries.
    angle = 2 * np.pi * np.arange(len(start)) / len(start)
    spread = start / np.abs(start).max() + 0.3 * np.stack([np.cos(angle), np.sin(angle)], 1)
    found = networkx.spring_layout(graph, pos=dict(enumerate(spread)), iterations=ITERATIONS, seed=0)
    return np.array([found[place] for place in range(len(start))])
