"""Graphs from similar data: the paper's Weighted and Similar, nearest neighbours, kernels."""

import math
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float64, Int64
from scipy.sparse import coo_array, csr_array

from fedlap.data.federation import Federation
from fedlap.errors import InputError, check_integer, check_number
from fedlap.graph.builders import (
    EdgeIndices,
    check_edges,
    connect_pairs,
    list_pairs,
    order_by_name,
    validate_probability,
)
from fedlap.graph.client_vectors import Statistic, Vectors, check_federation, compute_vectors
from fedlap.graph.graph import Graph
from fedlap.graph.nearest_neighbours import find_nearest

MEDIAN_SAMPLE = 2_000  # clients, at most, whose distances the median is computed from
UPPER_QUARTILE = 0.75
TIE_BREAK = 1e-6  # length of the coordinate that separates equal vectors, relative to the vectors' spread


def weight_by_rows(federation: Federation, little: float = 0.5) -> Graph:
    """The paper's Weighted: 1 between two clients with much data, 0.5 between much and little, else 0.

    little: a client has little data if its training rows are fewer than `little` times the upper quartile
        over all clients (not their median, which is a scarce client's count if `Federation.scarce` thins half
        of them).
    """
    check_federation("weighted", federation)
    rows = federation.train.count.double()
    least = check_number("little", little, zero=True, scope="graph") * torch.quantile(rows, UPPER_QUARTILE)
    much = (rows >= least).double().numpy()
    if much.all():
        return Graph.complete(federation.clients)
    begin, end = list_pairs("weighted", federation.clients)
    return connect_pairs(federation.clients, begin, end, (much[begin] + much[end]) / 2)


def similar(federation: Federation) -> Graph:
    """The paper's Similar: the number of labels two clients share, over the larger number either has.

    Labels are those of training rows. With two labels per client, weights are 0, 0.5 or 1.
    """
    check_federation("similar", federation)
    if federation.labels is None:
        raise InputError(
            "similar needs classes, but the targets are numbers; use nearest with by = 'means'", scope="graph"
        )
    seen = torch.zeros(len(federation.clients), len(federation.labels))
    seen[federation.train.find_owners(), federation.train.y] = 1
    holders = seen.sum(0).double()
    check_edges("similar", float((holders * (holders - 1) / 2).sum()))
    incidence = csr_array(seen.double().numpy())
    shared = coo_array(incidence @ incidence.T)
    number = seen.sum(1).double().numpy()
    keep = shared.row < shared.col
    begin, end = shared.row[keep].astype(np.int64), shared.col[keep].astype(np.int64)
    values = shared.data[keep] / np.maximum(number[begin], number[end])
    return connect_pairs(federation.clients, begin, end, values)


def nearest(
    federation: Federation,
    by: Statistic = "labels",
    path: str = "",
    sha256: str = "",
    neighbours: int = 5,
    weights: Literal["one", "gaussian"] = "one",
    bandwidth: float | None = None,
    noise: float = 0.0,
    seed: int = 0,
    height_km: float | None = None,
) -> Graph:
    """Join two clients if either is among the nearest neighbours of the other.

    by: vectors to compare. "labels": shares of labels among training rows; "means": means of training
        features, scaled as models see them; "places": where clients are, in kilometres; "metadata":
        standardised columns of the .csv file `path`.
    path: of metadata: a .csv file whose first column names the client and whose first line names the columns.
    sha256: of metadata: digest of the file; other content is refused.
    neighbours: number of nearest neighbours, at most all others. Names break ties, not the order of clients.
    weights: "one", or "gaussian": exp(−d²/2σ²) of the distance d.
    bandwidth: σ of Gaussian weights; by default the median distance of joined clients.
    noise: standard deviation of Gaussian noise added to every value of every client's vector before
        comparison. By itself it guarantees nothing: it is differentially private only if it is calibrated to
        the largest change in the vectors that one row, or one client, can cause.
    height_km: for places with a height, the distance in kilometres that one kilometre of height counts as, by
        default 100.
    """
    check_federation("nearest", federation)
    points = compute_vectors(federation, by, path, sha256, noise, seed, height_km)
    return connect_nearest(federation.clients, points, neighbours, weights, bandwidth)


def connect_nearest(
    names: tuple[str, ...],
    points: Vectors,
    neighbours: int = 5,
    weights: Literal["one", "gaussian"] = "one",
    bandwidth: float | None = None,
) -> Graph:
    """Join two clients if either is among the nearest neighbours of the other, by their points."""
    size = len(points)
    k = min(check_integer("neighbours", neighbours, 1, scope="graph"), size - 1)
    if weights not in ("one", "gaussian"):
        raise InputError(f"weights = {weights!r}; expected one or gaussian", field="weights", scope="graph")
    check_edges("nearest", k * size)
    found = _find_nearest_clients(points, names, k)
    begin, end = np.repeat(np.arange(size), k), found.ravel()
    pairs = np.unique(np.minimum(begin, end) * size + np.maximum(begin, end))
    begin, end = np.divmod(pairs, size)
    distance = _compute_distances(points, begin, end)
    typical = float(np.median(distance)) if size > 1 else 0.0
    values = np.ones(len(pairs)) if weights == "one" else _compute_gaussian(distance, bandwidth, typical)
    return connect_pairs(names, begin, end, values)


def kernel(
    federation: Federation,
    by: Statistic = "labels",
    path: str = "",
    sha256: str = "",
    bandwidth: float | None = None,
    threshold: float = 0.1,
    noise: float = 0.0,
    seed: int = 0,
    height_km: float | None = None,
) -> Graph:
    """Join two clients at distance d with weight exp(−d²/2σ²) if it is at least `threshold`.

    bandwidth: σ; by default the median distance between two clients (estimated from at most 2,000 clients).
    threshold: weight below which two clients are not joined, in [0, 1].
    by, path, sha256, noise, height_km: as in `nearest`.
    """
    from scipy.spatial import KDTree
    from scipy.spatial.distance import pdist

    check_federation("kernel", federation)
    points = compute_vectors(federation, by, path, sha256, noise, seed, height_km)
    sample = points[order_by_name(federation.clients)[:MEDIAN_SAMPLE]]
    typical = float(np.median(pdist(sample))) if len(sample) > 1 else 0.0
    sigma = _choose_bandwidth(bandwidth, typical)
    least = validate_probability("threshold", threshold)
    if least == 0:
        begin, end = list_pairs("kernel", federation.clients)
    else:
        reach = sigma * math.sqrt(2 * math.log(1 / least))
        tree = KDTree(points)
        check_edges("kernel", (int(tree.count_neighbors(tree, reach)) - len(points)) / 2)
        begin, end = tree.query_pairs(reach, output_type="ndarray").astype(np.int64).T
    return connect_pairs(
        federation.clients,
        begin,
        end,
        _compute_gaussian(_compute_distances(points, begin, end), sigma, typical),
    )


def _find_nearest_clients(
    points: Vectors, names: tuple[str, ...], k: int
) -> Int64[np.ndarray, "client near"]:
    """Return the indices of each client's nearest clients.

    One more coordinate, computed from names and too small to matter otherwise, separates equal vectors. So
    ties do not depend on the order of clients, and clients with equal vectors form a chain, not a star.
    """
    size = len(points)
    tie_break = np.empty(size)
    tie_break[order_by_name(names)] = np.arange(size) / size
    spread = float(np.sqrt(points.var(0).sum())) or 1.0
    return find_nearest(np.column_stack([points, TIE_BREAK * spread * tie_break]), k)


def _compute_distances(points: Vectors, begin: EdgeIndices, end: EdgeIndices) -> Float64[np.ndarray, "edge"]:
    """Compute the distance between both ends of each edge, feature by feature to save memory."""
    total = np.zeros(len(begin))
    for value in points.T:
        total += (value[begin] - value[end]) ** 2
    return np.sqrt(total)


def _compute_gaussian(
    distance: Float64[np.ndarray, "edge"], bandwidth: float | None, typical: float
) -> Float64[np.ndarray, "edge"]:
    """Compute exp(−d²/2σ²)."""
    return np.asarray(np.exp(-((distance / _choose_bandwidth(bandwidth, typical)) ** 2) / 2))


def _choose_bandwidth(bandwidth: float | None, typical: float) -> float:
    """Return σ, by default the typical distance; if that is zero, 1, since any value then serves."""
    return (
        (typical or 1.0)
        if bandwidth is None
        else check_number("bandwidth", bandwidth, zero=False, scope="graph")
    )
