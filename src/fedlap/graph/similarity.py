"""Graphs of clients whose data are alike: the paper's Weighted and Similar, nearest neighbours, kernels."""

import math
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float64, Int64
from scipy.sparse import coo_array, csr_array

from fedlap.data.federation import Federation
from fedlap.errors import InputError, real, whole
from fedlap.graph.builders import Places, by_name, check_edges, checked_probability, every_pair, joined
from fedlap.graph.client_vectors import Statistic, Vectors, check_federation, vectors
from fedlap.graph.graph import Graph
from fedlap.graph.nearest_neighbours import find_nearest

SAMPLED = 2_000  # clients, at most, whose distances the median is taken from
MUCH = 0.75  # the share of clients that the usual one, by rows, has more of
TIE = 1e-6  # of the vectors' spread: how far apart names put those that are the same


def weighted(federation: Federation, little: float = 0.5) -> Graph:
    """The paper's Weighted: 1 between two clients with much data, 0.5 between much and little, else 0.

    A client has little where its training rows are fewer than `little` times the upper quartile of all
    clients' (not their median, which is one of the scarce where `Federation.scarce` thins half of them).
    """
    check_federation("weighted", federation)
    rows = federation.train.count.double()
    least = real("little", little, zero=True, scope="graph") * torch.quantile(rows, MUCH)
    much = (rows >= least).double().numpy()
    if much.all():
        return Graph.complete(federation.clients)
    begin, end = every_pair("weighted", federation.clients)
    return joined(federation.clients, begin, end, (much[begin] + much[end]) / 2)


def similar(federation: Federation) -> Graph:
    """The paper's Similar: how many labels two clients share, over how many they have (the more of the two).

    Labels are those of training rows. With two labels a client, weights are 0, 0.5 or 1.
    """
    check_federation("similar", federation)
    if federation.labels is None:
        raise InputError(
            "the data's targets are numbers, so clients share no labels; use nearest", scope="graph"
        )
    seen = torch.zeros(len(federation.clients), len(federation.labels))
    seen[federation.train.owner(), federation.train.y] = 1
    having = seen.sum(0).double()
    check_edges("similar", float((having * (having - 1) / 2).sum()))
    owned = csr_array(seen.double().numpy())
    shared = coo_array(owned @ owned.T)
    number = seen.sum(1).double().numpy()
    keep = shared.row < shared.col
    begin, end = shared.row[keep].astype(np.int64), shared.col[keep].astype(np.int64)
    values = shared.data[keep] / np.maximum(number[begin], number[end])
    return joined(federation.clients, begin, end, values)


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
) -> Graph:
    """Each client joined to those nearest to it, and so to those that it is one of the nearest of.

    by: what is compared. "labels": shares of labels among training rows; "means": means of training features
        in the units that models see; "metadata": the columns of the .csv file `path` (its first column names
        the client, its first line the columns), standardised. With `sha256`, only a file of that content.
    neighbours: how many are nearest, or all others. Among equally near ones names decide, not places.
    weights: "one", or "gaussian": exp(−d²/2σ²) of the distance d, with σ = `bandwidth`, or else the median
        distance of clients that are joined.
    noise: standard deviation of Gaussian noise that is added to every number of every client's vector before
        anything is compared. By itself this guarantees nothing: it is differentially private only where its
        size is calibrated to how much one row, or one client, can change these vectors.
    """
    check_federation("nearest", federation)
    points = vectors(federation, by, path, sha256, noise, seed)
    size = len(points)
    near = min(whole("neighbours", neighbours, 1, scope="graph"), size - 1)
    if weights not in ("one", "gaussian"):
        raise InputError(f"weights = {weights!r}; it must be one or gaussian", field="weights", scope="graph")
    check_edges("nearest", near * size)
    found = _nearest(points, federation.clients, near)
    begin, end = np.repeat(np.arange(size), near), found.ravel()
    once = np.unique(np.minimum(begin, end) * size + np.maximum(begin, end))
    begin, end = np.divmod(once, size)
    distance = _distances(points, begin, end)
    usual = float(np.median(distance)) if size > 1 else 0.0
    values = np.ones(len(once)) if weights == "one" else _gaussian(distance, bandwidth, usual)
    return joined(federation.clients, begin, end, values)


def kernel(
    federation: Federation,
    by: Statistic = "labels",
    path: str = "",
    sha256: str = "",
    bandwidth: float | None = None,
    threshold: float = 0.1,
    noise: float = 0.0,
    seed: int = 0,
) -> Graph:
    """Any two clients joined with the weight exp(−d²/2σ²), d being their distance; below `threshold` not.

    bandwidth: σ; by default the median distance between any two clients (where there are many, of 2,000).
    by, path, sha256, noise: as in `nearest`.
    """
    from scipy.spatial import KDTree
    from scipy.spatial.distance import pdist

    check_federation("kernel", federation)
    points = vectors(federation, by, path, sha256, noise, seed)
    some = points[by_name(federation.clients)[:SAMPLED]]
    usual = float(np.median(pdist(some))) if len(some) > 1 else 0.0
    sigma = _checked_bandwidth(bandwidth, usual)
    least = checked_probability("threshold", threshold)
    if least == 0:
        begin, end = every_pair("kernel", federation.clients)
    else:
        reach = sigma * math.sqrt(2 * math.log(1 / least))
        tree = KDTree(points)
        check_edges("kernel", (int(tree.count_neighbors(tree, reach)) - len(points)) / 2)
        begin, end = tree.query_pairs(reach, output_type="ndarray").astype(np.int64).T
    return joined(federation.clients, begin, end, _gaussian(_distances(points, begin, end), sigma, usual))


def _nearest(points: Vectors, names: tuple[str, ...], near: int) -> Int64[np.ndarray, "client near"]:
    """The places of those nearest to each.

    One more coordinate, too small to matter otherwise and given by names, tells the same vectors apart: so
    ties are broken alike whatever the order, and clients who are all the same become a chain, not a star.
    """
    size = len(points)
    own = np.empty(size)
    own[by_name(names)] = np.arange(size) / size
    spread = float(np.sqrt(points.var(0).sum())) or 1.0
    return find_nearest(np.column_stack([points, TIE * spread * own]), near)


def _distances(points: Vectors, begin: Places, end: Places) -> Float64[np.ndarray, "edge"]:
    """Between the two ends of each edge, one feature after another, so that little memory is needed."""
    total = np.zeros(len(begin))
    for value in points.T:
        total += (value[begin] - value[end]) ** 2
    return np.sqrt(total)


def _gaussian(
    distance: Float64[np.ndarray, "edge"], bandwidth: float | None, usual: float
) -> Float64[np.ndarray, "edge"]:
    """exp(−d²/2σ²)."""
    return np.asarray(np.exp(-((distance / _checked_bandwidth(bandwidth, usual)) ** 2) / 2))


def _checked_bandwidth(bandwidth: float | None, usual: float) -> float:
    """σ; where all distances are zero any will do."""
    return (usual or 1.0) if bandwidth is None else real("bandwidth", bandwidth, zero=False, scope="graph")
