"""Graphs learned from models, or from their displacement since a common start.

A learned graph is symmetric, non-negative and scaled so that ρ = N, as for the complete graph with unit
weights: a strength means the same on both. It need not be connected; see `Graph.components`.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from scipy.linalg import eigvalsh
from torch import Tensor

from fedlap.errors import InputError, check_integer, unknown_name_error
from fedlap.graph.graph import Graph
from fedlap.randomness import digest_names

Models = Float[Tensor, "client param"]
PairMatrix = Float64[np.ndarray, "client client"]

MOST_COMPARED_CLIENTS = 4_000  # clients; all pairs of them are compared
ALL_PAIRS_UP_TO = 200  # clients; smooth graphs of more clients are learned from near pairs only
DISTANCE_BLOCK = 4_000_000  # values per block in double precision (32 MB)
MOST_ITERATIONS = 5_000
ITERATION_TOLERANCE = 1e-6  # relative change that ends the iteration
SMALLEST_WEIGHT = 1e-4  # relative to the largest weight; smaller weights are dropped
DISTANCE_ROUNDING = 1e-13  # relative to two models' squared norms; smaller squared distances count as zero


def learn_graph(
    models: Models,
    clients: Sequence[str] | None = None,
    method: str = "kernel",
    neighbours: int = 5,
    start: Float[Tensor, "param"] | None = None,
) -> Graph:
    """Learn a graph on which these models are smooth, with about `neighbours` neighbours per client.

    clients: names, which break ties between models at equal distance; without names, the order breaks them.
    method: "kernel", "smooth" or "cosine", see `LEARNERS`.
    start: for cosine, the common initial model; by default the mean of the models.
    """
    return Graph.from_matrix(learn_weights(models, clients, method, neighbours, start), clients)


def learn_weights(
    models: Models,
    clients: Sequence[str] | None = None,
    method: str = "kernel",
    neighbours: int = 5,
    start: Float[Tensor, "param"] | None = None,
) -> PairMatrix:
    """Learn the weight matrix; it is computed in the order of the names' digests.

    Neither ties nor rounding depend on the order of `clients`.
    """
    if method not in LEARNERS:
        raise unknown_name_error("learning method", method, LEARNERS, field="method")
    check_client_count(len(models))
    count = min(check_integer("neighbours", neighbours, 1, scope="learned graph"), len(models) - 1)
    if not bool(models.isfinite().all()):
        raise InputError(
            "learned graph: some models are not finite, so training has diverged; set a smaller lr"
        )
    if count == 0:
        return np.zeros((1, 1))
    if clients is None:
        return scale_to_rho(LEARNERS[method](models, count, start))
    order = digest_names(clients).argsort()
    places = order.argsort().numpy()
    found = scale_to_rho(LEARNERS[method](models[order.to(models.device)], count, start))
    return np.asarray(found[np.ix_(places, places)])


def check_client_count(clients: int) -> None:
    """Raise InputError for more clients than can be compared pair by pair."""
    if clients > MOST_COMPARED_CLIENTS:
        raise InputError(
            f"learned graph: {clients} clients; expected at most {MOST_COMPARED_CLIENTS}, since it compares "
            "all pairs: use graph nearest with metadata or statistics"
        )


def scale_to_rho(a: PairMatrix) -> PairMatrix:
    """Scale weights so that ρ = N; weights without edges are returned unchanged."""
    # All eigenvalues are computed, since LAPACK's search for a single one can fail if several are equal.
    rho = eigvalsh(np.diag(a.sum(1)) - a)[-1]
    return np.asarray(a * (len(a) / rho)) if rho > 0 else a


def compute_squared_distances(models: Models) -> Float64[Tensor, "client client"]:
    """Compute ‖w_k − w_ℓ‖² for all pairs in double precision, block by block of the parameters."""
    total = torch.zeros(len(models), len(models), dtype=torch.float64, device=models.device)
    sizes = torch.zeros_like(total)
    for block in models.split(max(1, DISTANCE_BLOCK // len(models)), 1):
        # The mean model does not change distances, and without it fewer digits cancel.
        centred = block.double() - block.double().mean(0)
        squares = centred.square().sum(1)
        pairs = squares.unsqueeze(0) + squares.unsqueeze(1)
        total += pairs - 2 * centred @ centred.T
        sizes += pairs
    total = torch.where(total > DISTANCE_ROUNDING * sizes, total, 0.0).fill_diagonal_(0)
    return (total + total.T) / 2


def learn_kernel_weights(models: Models, neighbours: int, start: Tensor | None = None) -> PairMatrix:
    """Compute Gaussian weights exp(−d²/(s_k s_ℓ)), with s_k the distance to the last of k's nearest clients.

    The local scale gives dense and sparse regions comparable edges (Zelnik-Manor and Perona, 2004). Two
    clients are joined if either is among the other's nearest.
    """
    squares = compute_squared_distances(models).cpu().numpy()
    last = np.sqrt(_sort_distances(squares)[:, neighbours - 1])
    scale = np.outer(last, last)
    # If a client equals all of its nearest, s_k = 0: its weight is 1 to equal clients and 0 to all others.
    ratio = np.divide(squares, scale, out=np.where(squares > 0, np.inf, 0.0), where=scale > 0)
    return _sparsify(np.exp(-ratio), -squares, neighbours)


def learn_cosine_weights(models: Models, neighbours: int, start: Tensor | None = None) -> PairMatrix:
    """Compute the cosine of two models' displacements, clipped at zero, to the most similar clients."""
    origin = models.double().mean(0) if start is None else start.double().to(models.device)
    displacement = models.double() - origin
    length = displacement.norm(dim=1, keepdim=True)
    unit = torch.where(length > 0, displacement / length.clamp_min(torch.finfo(torch.float64).tiny), 0.0)
    similarity = (unit @ unit.T).clamp(0, 1).fill_diagonal_(0)
    values = ((similarity + similarity.T) / 2).cpu().numpy()
    return _sparsify(values, values, neighbours)


def learn_smooth_weights(models: Models, neighbours: int, start: Tensor | None = None) -> PairMatrix:
    """Compute the weights on which models are smoothest while every client has neighbours (Kalofolias, 2016).

    Distances are scaled so that clients have about `neighbours` neighbours; with many clients only near pairs
    are considered (Kalofolias and Perraudin, 2019).
    """
    z = compute_squared_distances(models).cpu().numpy()
    near = len(z) - 1 if len(z) <= ALL_PAIRS_UP_TO else 3 * neighbours + 10
    return solve_log_degrees(z * _choose_scale(z, neighbours), _mark_nearest(-z, near))


def solve_log_degrees(z: PairMatrix, allowed: Bool[np.ndarray, "client client"]) -> PairMatrix:
    """Minimise ‖A ∘ Z‖₁ − Σ_k log d_k + ½‖A‖²_F over symmetric A ≥ 0, by a primal-dual iteration.

    With w the allowed entries of A's upper half and S the matrix that sums them to degrees, the objective is
    2zᵀw − 1ᵀlog(Sw) + ‖w‖². Gradient steps on ‖w‖² alternate with proximal steps of the other two terms
    (Komodakis and Pesquet, 2015). The step size 1/(2 + ‖S‖) is the bound from the Lipschitz constants, and
    ‖S‖² is at most twice the largest number of pairs per client.
    """
    clients = len(z)
    rows, columns = np.nonzero(np.triu(allowed, 1))
    pairs = 2 * z[rows, columns]
    step = 0.99 / (2 + np.sqrt(2 * allowed.sum(1).max()))
    w, d = np.zeros(len(pairs)), np.zeros(clients)
    for _ in range(MOST_ITERATIONS):
        y = w - step * (2 * w + d[rows] + d[columns])
        forward = d + step * _sum_degrees(w, rows, columns, clients)
        p = np.maximum(0, y - step * pairs)
        dual = (forward - np.sqrt(forward**2 + 4 * step)) / 2
        q = p - step * (2 * p + dual[rows] + dual[columns])
        after = dual + step * _sum_degrees(p, rows, columns, clients)
        primal_change, dual_change = q - y, after - forward
        w, d = w + primal_change, d + dual_change
        small = np.linalg.norm(primal_change) <= ITERATION_TOLERANCE * np.linalg.norm(w)
        if small and np.linalg.norm(dual_change) <= ITERATION_TOLERANCE * np.linalg.norm(d):
            break
    a = np.zeros((clients, clients))
    a[rows, columns] = np.where(w > SMALLEST_WEIGHT * w.max(initial=0.0), w, 0.0)
    return a + a.T


def _sum_degrees(w: np.ndarray, rows: np.ndarray, columns: np.ndarray, clients: int) -> np.ndarray:
    return np.bincount(rows, w, clients) + np.bincount(columns, w, clients)


def _choose_scale(z: PairMatrix, neighbours: int) -> float:
    """Return the factor for distances with which a single client would choose about `neighbours` neighbours.

    With sorted distances z, a single client has k neighbours if the factor is between 1/√(k z²_{k+1} −
    z_{k+1} Σ_{i≤k} z_i) and the same expression with z_k in place of z_{k+1}. The result is the geometric
    mean of both ends, each averaged over clients.
    """
    near = _sort_distances(z)
    sums = near[:, :neighbours].sum(1)
    tiny = np.finfo(float).tiny
    here = near[:, neighbours - 1]
    further = near[:, neighbours] if neighbours < near.shape[1] else here * (1 + 1 / neighbours)
    upper = np.sqrt(np.maximum(neighbours * here**2 - here * sums, tiny))
    lower = np.sqrt(np.maximum(neighbours * further**2 - further * sums, tiny))
    ends = 1 / lower[lower > np.sqrt(tiny)], 1 / upper[upper > np.sqrt(tiny)]
    means = [float(np.mean(end)) for end in ends if len(end)]
    return float(np.exp(np.mean(np.log(means)))) if means else 1.0


def _sort_distances(squares: PairMatrix) -> Float64[np.ndarray, "client other"]:
    """Sort each client's distances to the others."""
    others = squares + np.diag(np.full(len(squares), np.inf))
    return np.asarray(np.sort(others, axis=1)[:, :-1])


def _sparsify(values: PairMatrix, similarity: PairMatrix, neighbours: int) -> PairMatrix:
    """Set all weights to zero except those to the most similar clients."""
    return np.where(_mark_nearest(similarity, neighbours), values, 0.0)


def _mark_nearest(similarity: PairMatrix, neighbours: int) -> Bool[np.ndarray, "client client"]:
    """Mark pairs of which either client is among the most similar to the other; the order breaks ties."""
    order = np.argsort(-(similarity - np.diag(np.full(len(similarity), np.inf))), axis=1, kind="stable")
    keep = np.zeros(similarity.shape, dtype=bool)
    np.put_along_axis(keep, order[:, :neighbours], True, axis=1)
    keep |= keep.T
    np.fill_diagonal(keep, False)
    return keep


LEARNERS: Final[dict[str, Callable[[Models, int, Tensor | None], PairMatrix]]] = {
    "kernel": learn_kernel_weights,
    "smooth": learn_smooth_weights,
    "cosine": learn_cosine_weights,
}
