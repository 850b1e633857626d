"""Graphs learned from what training has seen: models, or how far they have moved from a common start.

A learned graph is symmetric, non-negative and scaled so that ρ = N, as that of the complete graph with
weights of one: a strength means the same on both. Whether it is connected is for `Graph.components` to say.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from scipy.linalg import eigvalsh
from torch import Tensor

from fedlap.errors import InputError, unknown, whole
from fedlap.graph.graph import Graph
from fedlap.randomness import digests

Models = Float[Tensor, "client param"]
Square = Float64[np.ndarray, "client client"]

MOST = 4_000  # clients; all pairs are compared
EVERY = 200  # clients; of more, smooth graphs are learned from near pairs alone
BLOCK = 4_000_000  # values that are looked at together in double precision (32 MB)
ROUNDS = 5_000  # of the iteration, at most
TOLERANCE = 1e-6
LEAST = 1e-4  # of the largest weight; smaller ones are no edges
ROUNDING = (
    1e-13  # of two models' squared sizes; squared distances below are rounding alone, and count as zero
)


def learned(
    models: Models,
    clients: Sequence[str] | None = None,
    method: str = "kernel",
    neighbours: int = 5,
    start: Float[Tensor, "param"] | None = None,
) -> Graph:
    """The graph on which these models are smooth, of about so many neighbours each.

    clients: their names, which decide between models at equal distance; without names, places decide.
    method: "kernel", "smooth" or "cosine", see `LEARNERS`.
    start: of cosine, where all models began; without it, their mean.
    """
    return Graph.from_matrix(learned_weights(models, clients, method, neighbours, start), clients)


def learned_weights(
    models: Models,
    clients: Sequence[str] | None = None,
    method: str = "kernel",
    neighbours: int = 5,
    start: Float[Tensor, "param"] | None = None,
) -> Square:
    """The weights of the learned graph as a matrix; computed in the order of the names' digests.

    So neither ties nor rounding depend on the order in which clients are given.
    """
    if method not in LEARNERS:
        raise unknown("way to learn a graph", method, LEARNERS, field="method")
    check_size(len(models))
    near = min(whole("neighbours", neighbours, 1, scope="learned graph"), len(models) - 1)
    if not bool(models.isfinite().all()):
        raise InputError("learned graph: some models are not finite; training has diverged")
    if near == 0:
        return np.zeros((1, 1))
    if clients is None:
        return scaled(LEARNERS[method](models, near, start))
    order = digests(clients).argsort()
    places = order.argsort().numpy()
    found = scaled(LEARNERS[method](models[order.to(models.device)], near, start))
    return np.asarray(found[np.ix_(places, places)])


def check_size(clients: int) -> None:
    """Refuse more clients than can be compared pair by pair."""
    if clients > MOST:
        raise InputError(
            f"learned graph: {clients} clients are too many to compare pair by pair (at most {MOST}); "
            "make one from metadata or statistics with graph nearest"
        )


def scaled(a: Square) -> Square:
    """With ρ = N; as it is where it has no edges."""
    # All eigenvalues: LAPACK's search for one alone can fail where several are equal.
    rho = eigvalsh(np.diag(a.sum(1)) - a)[-1]
    return np.asarray(a * (len(a) / rho)) if rho > 0 else a


def squared_distances(models: Models) -> Square:
    """‖w_k − w_ℓ‖² between all pairs, in double precision, some parameters at a time."""
    total = torch.zeros(len(models), len(models), dtype=torch.float64, device=models.device)
    sizes = torch.zeros_like(total)
    for some in models.split(max(1, BLOCK // len(models)), 1):
        # What all share would only cost digits.
        apart = some.double() - some.double().mean(0)
        squares = apart.square().sum(1)
        pairs = squares.unsqueeze(0) + squares.unsqueeze(1)
        total += pairs - 2 * apart @ apart.T
        sizes += pairs
    total = torch.where(total > ROUNDING * sizes, total, 0.0).fill_diagonal_(0)
    return ((total + total.T) / 2).cpu().numpy()


def kernel(models: Models, neighbours: int, start: Tensor | None = None) -> Square:
    """Gaussian weights to the nearest, exp(−d²/(s_k s_ℓ)), with s_k the distance to the last of them.

    So dense and sparse regions get edges alike (Zelnik-Manor and Perona, 2004). Two are joined where either
    is among the other's nearest.
    """
    squares = squared_distances(models)
    last = np.sqrt(_nearest(squares)[:, neighbours - 1])
    scale = np.outer(last, last)
    # Where a client equals its nearest ones, s_k = 0: its weight is 1 to its equals and 0 to all others.
    ratio = np.divide(squares, scale, out=np.where(squares > 0, np.inf, 0.0), where=scale > 0)
    return _sparse(np.exp(-ratio), -squares, neighbours)


def cosine(models: Models, neighbours: int, start: Tensor | None = None) -> Square:
    """The cosine of the ways that two models have gone, where it is positive, to the most alike."""
    origin = models.double().mean(0) if start is None else start.double().to(models.device)
    gone = models.double() - origin
    length = gone.norm(dim=1, keepdim=True)
    unit = torch.where(length > 0, gone / length.clamp_min(torch.finfo(torch.float64).tiny), 0.0)
    alike = (unit @ unit.T).clamp(0, 1).fill_diagonal_(0)
    values = ((alike + alike.T) / 2).cpu().numpy()
    return _sparse(values, values, neighbours)


def smooth(models: Models, neighbours: int, start: Tensor | None = None) -> Square:
    """The weights on which models are smoothest while every client has neighbours (Kalofolias, 2016).

    Distances are scaled so that clients have about so many, and of many clients only pairs of near ones are
    looked at (Kalofolias and Perraudin, 2019).
    """
    z = squared_distances(models)
    near = len(z) - 1 if len(z) <= EVERY else 3 * neighbours + 10
    return log_degrees(z * _scale_for(z, neighbours), _among_nearest(-z, near))


def log_degrees(z: Square, allowed: Bool[np.ndarray, "client client"]) -> Square:
    """min over symmetric A ≥ 0 of ‖A ∘ Z‖₁ − Σ_k log d_k + ½‖A‖²_F, by a primal-dual iteration.

    With w the upper half of A, where edges are allowed, and S the matrix that sums it to degrees, this is
    2zᵀw − 1ᵀlog(Sw) + ‖w‖²: gradient steps on ‖w‖² between the proximal steps of the other two (Komodakis and
    Pesquet, 2015), as long as Lipschitz constants allow, 1/(2 + ‖S‖); ‖S‖² ≤ twice the pairs of any one.
    """
    clients = len(z)
    rows, columns = np.nonzero(np.triu(allowed, 1))
    pairs = 2 * z[rows, columns]
    step = 0.99 / (2 + np.sqrt(2 * allowed.sum(1).max()))
    w, d = np.zeros(len(pairs)), np.zeros(clients)
    for _ in range(ROUNDS):
        y = w - step * (2 * w + d[rows] + d[columns])
        forward = d + step * _degrees(w, rows, columns, clients)
        p = np.maximum(0, y - step * pairs)
        dual = (forward - np.sqrt(forward**2 + 4 * step)) / 2
        q = p - step * (2 * p + dual[rows] + dual[columns])
        after = dual + step * _degrees(p, rows, columns, clients)
        moved, turned = q - y, after - forward
        w, d = w + moved, d + turned
        small = np.linalg.norm(moved) <= TOLERANCE * np.linalg.norm(w)
        if small and np.linalg.norm(turned) <= TOLERANCE * np.linalg.norm(d):
            break
    a = np.zeros((clients, clients))
    a[rows, columns] = np.where(w > LEAST * w.max(initial=0.0), w, 0.0)
    return a + a.T


def _degrees(w: np.ndarray, rows: np.ndarray, columns: np.ndarray, clients: int) -> np.ndarray:
    return np.bincount(rows, w, clients) + np.bincount(columns, w, clients)


def _scale_for(z: Square, neighbours: int) -> float:
    """What distances are multiplied with so that a client alone would choose about so many neighbours.

    Alone, it has k where the factor is between 1/√(k z²_{k+1} − z_{k+1} Σ_{i≤k} z_i) and the same with z_k,
    for its sorted distances z; the geometric mean of the two, at the mean client.
    """
    near = _nearest(z)
    sums = near[:, :neighbours].sum(1)
    tiny = np.finfo(float).tiny
    here = near[:, neighbours - 1]
    further = near[:, neighbours] if neighbours < near.shape[1] else here * (1 + 1 / neighbours)
    upper = np.sqrt(np.maximum(neighbours * here**2 - here * sums, tiny))
    lower = np.sqrt(np.maximum(neighbours * further**2 - further * sums, tiny))
    ends = 1 / lower[lower > np.sqrt(tiny)], 1 / upper[upper > np.sqrt(tiny)]
    means = [float(np.mean(end)) for end in ends if len(end)]
    return float(np.exp(np.mean(np.log(means)))) if means else 1.0


def _nearest(squares: Square) -> Float64[np.ndarray, "client other"]:
    """Each client's distances to the others, sorted."""
    others = squares + np.diag(np.full(len(squares), np.inf))
    return np.asarray(np.sort(others, axis=1)[:, :-1])


def _sparse(values: Square, alike: Square, neighbours: int) -> Square:
    """Only the weights to those most alike."""
    return np.where(_among_nearest(alike, neighbours), values, 0.0)


def _among_nearest(alike: Square, neighbours: int) -> Bool[np.ndarray, "client client"]:
    """Whether either is among those most like the other; of equals, the first ones."""
    order = np.argsort(-(alike - np.diag(np.full(len(alike), np.inf))), axis=1, kind="stable")
    keep = np.zeros(alike.shape, dtype=bool)
    np.put_along_axis(keep, order[:, :neighbours], True, axis=1)
    keep |= keep.T
    np.fill_diagonal(keep, False)
    return keep


LEARNERS: Final[dict[str, Callable[[Models, int, Tensor | None], Square]]] = {
    "kernel": kernel,
    "smooth": smooth,
    "cosine": cosine,
}
