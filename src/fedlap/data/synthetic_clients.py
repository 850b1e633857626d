"""Synthetic clients whose true models are smooth on a known graph, to measure the value of that graph."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float64, Int64, Num
from scipy.sparse import csr_array
from torch import Tensor

from fedlap.data.client_rows import concatenate_ranges
from fedlap.data.federation import Federation
from fedlap.data.table import Table
from fedlap.errors import InputError, check_integer, check_number, unknown_name_error
from fedlap.graph.graph import Graph
from fedlap.graph.weights import DENSE_UP_TO
from fedlap.randomness import Draws, digest_names, draws
from fedlap.summaries import summarise_fields

VALUES_PER_DRAW = 100_000  # Features are drawn in blocks of about this many values, which fit into a cache.


@dataclass(frozen=True, eq=False)
class Synthetic:
    """A table of clients, the graph on which their true models are smooth, and these models."""

    table: Table
    graph: Graph
    models: Float64[Tensor, "client param"]  # in the order of a linear model's flat row

    __repr__ = summarise_fields

    @cached_property
    def federation(self) -> Federation:
        """The clients with their training and test rows."""
        return Federation.from_table(self.table)


def synthetic(
    task: Literal["classification", "regression"] = "classification",
    clients: int = 30,
    features: int = 10,
    labels: int = 3,
    rows: int = 30,
    test_rows: int = 100,
    smoothness: float = 10.0,
    size: float = 4.0,
    noise: float = 1.0,
    clusters: int = 0,
    seed: int = 0,
) -> Synthetic:
    """Generate clients with linear models that are smooth on a ring, or on a graph of clusters.

    The true models are Gaussian on the graph with precision (I + smoothness·L)², scaled so that a weight has
    standard deviation `size`/√features. Client k has between rows/2 and 3·rows/2 training rows.

    task: labels drawn from a client's softmax, or targets x·w + noise.
    clients: number of clients.
    features: number of features, standard normal.
    labels: number of classes (ignored for regression, which has one target).
    rows: mean number of training rows per client.
    test_rows: number of test rows per client.
    smoothness: how slowly models change along edges.
    size: scale of the true models.
    noise: standard deviation of the noise on targets (ignored for classification).
    clusters: 0 for a ring, else the number of clusters, each a complete graph.
    seed: seed of all draws.
    """
    if task not in ("classification", "regression"):
        raise unknown_name_error(
            "task of synthetic data", task, ("classification", "regression"), field="task"
        )
    least = {"clients": 1, "features": 1, "rows": 1, "test_rows": 0, "labels": 2}
    counts = {
        "clients": clients,
        "features": features,
        "rows": rows,
        "test_rows": test_rows,
        "labels": labels,
    }
    for name, value in counts.items():
        check_integer(name, value, least[name], scope="synthetic")
    for name, amount in {"smoothness": smoothness, "size": size, "noise": noise}.items():
        check_number(name, amount, zero=True, scope="synthetic")
    if not 0 <= check_integer("clusters", clusters, 0, scope="synthetic") <= clients:
        raise InputError(
            f"clusters = {clusters}; expected at most {clients}, the number of clients",
            field="clusters",
            scope="synthetic",
        )
    names = tuple(str(k) for k in range(clients))
    cluster_of = torch.arange(clients) * clusters // clients
    graph = _connect_clusters(names, cluster_of) if clusters else Graph.ring(names)
    classes = labels if task == "classification" else None
    outputs = classes or 1
    z = draws(seed, "data").normal(0, 0, clients * (features + 1) * outputs).view(clients, -1)
    W = _smooth_in_clusters(z, cluster_of, smoothness) if clusters else _smooth_on_ring(z, graph, smoothness)
    W *= size / features**0.5
    stream, ids = draws(seed, "data", 1), digest_names(names)
    share = stream.uniforms(ids, 0, 1).flatten().tolist()
    count = torch.tensor([max(1, round(rows * (0.5 + u))) for u in share])
    total = count + test_rows
    x, y, first = draw_linear_rows(stream, ids, W, total, features, None if classes else noise)
    # The table has the training rows of all clients, then their test rows.
    sizes = torch.cat([count, torch.full_like(count, test_rows)])
    row = concatenate_ranges(torch.cat([first, first + count]), sizes)
    owner = torch.arange(clients).repeat(2).repeat_interleave(sizes)
    test = torch.arange(len(owner)) >= int(count.sum())
    table = Table.of((x[row], y[row]), labels=classes, test=test, where="synthetic data")
    return Synthetic(replace(table, clients=names, owner=owner), graph, W)


def draw_linear_rows(
    stream: Draws,
    ids: Int64[Tensor, "client"],
    W: Float64[Tensor, "client param"],
    total: Int64[Tensor, "client"],
    features: int,
    noise: float | None,
) -> tuple[Float64[Tensor, "row feature"], Num[Tensor, "row *output"], Int64[Tensor, "client"]]:
    """Draw `total` rows per client, and return them with the index of each client's first row.

    Clients with equally many rows are drawn together. Targets have noise, or are labels if `noise` is None.
    """
    order = total.argsort(stable=True)
    parts = [
        _draw_rows(stream, ids[block], W[block], int(total[block[0]]), features, noise)
        for group in order.split(total.unique(return_counts=True)[1].tolist())
        for block in group.split(max(1, VALUES_PER_DRAW // (features * int(total[group[0]]))))
    ]
    x, y = (torch.cat(values) for values in zip(*parts, strict=True))
    first = torch.empty_like(total)
    first[order] = total[order].cumsum(0) - total[order]
    return x, y, first


def _draw_rows(
    stream: Draws,
    ids: Int64[Tensor, "client"],
    W: Float64[Tensor, "client param"],
    total: int,
    features: int,
    noise: float | None,
) -> tuple[Float64[Tensor, "row feature"], Num[Tensor, "row *output"]]:
    """Draw `total` rows per client: targets with noise, or labels if `noise` is None."""
    outputs = W.shape[1] // (features + 1)
    x = stream.normals(ids, 1, total * features).view(len(ids), total, features)
    weight, bias = W[:, : features * outputs].view(-1, outputs, features), W[:, features * outputs :]
    # One product per client: a batched product would round differently for some sizes.
    products = [a @ b for a, b in zip(x.unbind(), weight.mT.unbind(), strict=True)]
    scores = torch.stack(products) + bias.unsqueeze(1)
    if noise is not None:
        z = stream.normals(ids, 2, total * outputs).view_as(scores)
        return x.flatten(0, 1), (scores + noise * z).flatten(0, 1)
    # The largest of scores plus Gumbel noise is a draw from their softmax.
    gumbel = -(-stream.uniforms(ids, 2, total * outputs).log()).log().view_as(scores)
    return x.flatten(0, 1), (scores + gumbel).argmax(2).flatten()


def _connect_clusters(names: tuple[str, ...], cluster_of: Int64[Tensor, "client"]) -> Graph:
    """Build a graph in which every cluster is complete and no two clusters are connected."""
    groups = torch.arange(len(cluster_of)).split(cluster_of.bincount().tolist())
    pairs = torch.cat([torch.combinations(members) for members in groups])
    ones = np.ones(2 * len(pairs))
    ends = torch.cat([pairs, pairs.flip(1)]).T.numpy()
    return Graph.from_matrix(csr_array((ones, (ends[0], ends[1])), shape=(len(names),) * 2), names)


def _smooth_in_clusters(
    z: Float64[Tensor, "client param"], cluster_of: Int64[Tensor, "client"], smoothness: float
) -> Float64[Tensor, "client param"]:
    """Compute (I + smoothness·L)⁻¹ z for complete clusters, scaled back to unit variance.

    Each model's difference from its cluster's mean shrinks.
    """
    count = cluster_of.bincount()
    sums = torch.zeros(len(count), z.shape[1], dtype=z.dtype).index_add_(0, cluster_of, z)
    size = count.double().unsqueeze(1)[cluster_of]
    mean = sums[cluster_of] / size
    factor = 1 / (1 + smoothness * size)
    return (mean + factor * (z - mean)) / (1 / size + factor.square() * (1 - 1 / size)).sqrt()


def _smooth_on_ring(
    z: Float64[Tensor, "client param"], graph: Graph, smoothness: float
) -> Float64[Tensor, "client param"]:
    """Compute (I + smoothness·L)⁻¹ z on a ring, scaled back to unit variance."""
    if graph.size > DENSE_UP_TO:  # The Fourier basis diagonalises L.
        angle = 2 * math.pi * torch.arange(graph.size, dtype=torch.float64) / graph.size
        factor = 1 / (1 + smoothness * (2 - 2 * angle.cos()))
        waves = torch.fft.rfft(z, dim=0) * factor[: graph.size // 2 + 1].unsqueeze(1)
        smooth_models: Tensor = torch.fft.irfft(waves, graph.size, dim=0)
        return smooth_models / factor.square().mean().sqrt()
    a = torch.from_numpy(graph.weights.matrix().toarray())
    inverse = torch.linalg.inv(torch.eye(len(a)).double() + smoothness * (torch.diag(a.sum(1)) - a))
    spread: Tensor = inverse.square().sum(1, keepdim=True).sqrt()
    smooth: Tensor = inverse @ z / spread
    return smooth
