"""Made-up clients whose true models are smooth on a known graph, so that what the graph is worth is known."""

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float64, Int64, Num
from scipy.sparse import csr_array
from torch import Tensor

from fedlap.data.client_rows import spans
from fedlap.data.federation import Federation
from fedlap.data.table import Table
from fedlap.errors import InputError, real, unknown, whole
from fedlap.graph import Graph
from fedlap.graph.weights import DENSE_UP_TO
from fedlap.randomness import Draws, digests, draws

BLOCK = 100_000  # features are drawn in blocks of about this many values, which fit a cache


@dataclass(frozen=True, eq=False)
class Synthetic:
    """A federation, the graph its true models are smooth on, and those models."""

    federation: Federation
    graph: Graph
    models: Float64[Tensor, "client param"]  # in the order of a linear model's flat row


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
    """Linear clients around a ring, neighbours alike and opposite ones strangers; or in clusters.

    The true models are Gaussian on the graph with precision (I + smoothness·L)², scaled so that a weight has
    standard deviation `size`/√features. Client k has between rows/2 and 3·rows/2 training rows.

    task: labels drawn from a client's softmax, or targets x·w + noise.
    clients: how many.
    features: standard normal ones.
    labels: classes (ignored for regression, which has one target).
    rows: mean number of training rows of a client.
    test_rows: test rows of each client.
    smoothness: how slowly models change along edges.
    size: how large the true models are.
    noise: standard deviation of the noise on targets (ignored for classification).
    clusters: 0 for a ring, or so many groups of which all members are joined, and no others.
    seed: of everything.
    """
    if task not in ("classification", "regression"):
        raise unknown("task of synthetic data", task, ("classification", "regression"), field="task")
    least = {"clients": 1, "features": 1, "rows": 1, "test_rows": 0, "labels": 2}
    counts = {
        "clients": clients,
        "features": features,
        "rows": rows,
        "test_rows": test_rows,
        "labels": labels,
    }
    for name, value in counts.items():
        whole(name, value, least[name], scope="synthetic")
    for name, amount in {"smoothness": smoothness, "size": size, "noise": noise}.items():
        real(name, amount, zero=True, scope="synthetic")
    if not 0 <= whole("clusters", clusters, 0, scope="synthetic") <= clients:
        raise InputError(
            f"clusters = {clusters}; there are {clients} clients, take no more",
            field="clusters",
            scope="synthetic",
        )
    names = tuple(str(k) for k in range(clients))
    member = torch.arange(clients) * clusters // clients
    graph = _joined(names, member) if clusters else Graph.ring(names)
    classes = labels if task == "classification" else None
    outputs = classes or 1
    z = draws(seed, "data").normal(0, 0, clients * (features + 1) * outputs).view(clients, -1)
    W = _alike(z, member, smoothness) if clusters else _smooth(z, graph, smoothness)
    W *= size / features**0.5
    own, at = draws(seed, "data", 1), digests(names)
    share = own.uniforms(at, 0, 1).flatten().tolist()
    count = torch.tensor([max(1, round(rows * (0.5 + u))) for u in share])
    total = count + test_rows
    order = count.argsort(stable=True)  # those with equally many rows are drawn for together
    parts = [
        _rows(own, at[some], W[some], int(total[some[0]]), features, None if classes else noise)
        for alike in order.split(count.unique(return_counts=True)[1].tolist())
        for some in alike.split(max(1, BLOCK // (features * int(total[alike[0]]))))
    ]
    x, y = (torch.cat(values) for values in zip(*parts, strict=True))
    first = torch.empty_like(count)
    first[order] = total[order].cumsum(0) - total[order]
    # Everybody's training rows, then everybody's test rows.
    each = torch.cat([count, torch.full_like(count, test_rows)])
    places = spans(torch.cat([first, first + count]), each)
    owner = torch.arange(clients).repeat(2).repeat_interleave(each)
    test = torch.arange(len(owner)) >= int(count.sum())
    table = Table.of((x[places], y[places]), labels=classes, test=test, where="synthetic data")
    federation = Federation.from_table(replace(table, clients=names, owner=owner))
    return Synthetic(federation, graph, W)


def _rows(
    own: Draws,
    at: Int64[Tensor, "client"],
    W: Float64[Tensor, "client param"],
    total: int,
    features: int,
    noise: float | None,
) -> tuple[Float64[Tensor, "row feature"], Num[Tensor, "row *output"]]:
    """This many rows of each client: targets with so much noise or, without any, labels."""
    outputs = W.shape[1] // (features + 1)
    x = own.normals(at, 1, total * features).view(len(at), total, features)
    weight, bias = W[:, : features * outputs].view(-1, outputs, features), W[:, features * outputs :]
    # A product for each client: one of all at once would round otherwise for some sizes.
    products = [a @ b for a, b in zip(x.unbind(), weight.mT.unbind(), strict=True)]
    scores = torch.stack(products) + bias.unsqueeze(1)
    if noise is not None:
        drawn = own.normals(at, 2, total * outputs).view_as(scores)
        return x.flatten(0, 1), (scores + noise * drawn).flatten(0, 1)
    # The largest of scores plus Gumbel noise is a draw from their softmax.
    gumbel = -(-own.uniforms(at, 2, total * outputs).log()).log().view_as(scores)
    return x.flatten(0, 1), (scores + gumbel).argmax(2).flatten()


def _joined(names: tuple[str, ...], member: Int64[Tensor, "client"]) -> Graph:
    """All members of each cluster joined to each other."""
    groups = torch.arange(len(member)).split(member.bincount().tolist())
    pairs = torch.cat([torch.combinations(own) for own in groups])
    ones = np.ones(2 * len(pairs))
    ends = torch.cat([pairs, pairs.flip(1)]).T.numpy()
    return Graph.from_matrix(csr_array((ones, (ends[0], ends[1])), shape=(len(names),) * 2), names)


def _alike(
    z: Float64[Tensor, "client param"], member: Int64[Tensor, "client"], smoothness: float
) -> Float64[Tensor, "client param"]:
    """(I + smoothness·L)⁻¹ z where all of a cluster are joined: what differs from its mean is made smaller.

    Scaled back to unit variance.
    """
    count = member.bincount()
    sums = torch.zeros(len(count), z.shape[1], dtype=z.dtype).index_add_(0, member, z)
    size = count.double().unsqueeze(1)[member]
    mean = sums[member] / size
    less = 1 / (1 + smoothness * size)
    return (mean + less * (z - mean)) / (1 / size + less.square() * (1 - 1 / size)).sqrt()


def _smooth(
    z: Float64[Tensor, "client param"], graph: Graph, smoothness: float
) -> Float64[Tensor, "client param"]:
    """(I + smoothness·L)⁻¹ z on a ring, scaled back to unit variance."""
    if graph.size > DENSE_UP_TO:  # by waves around the ring, in which L is diagonal
        angle = 2 * math.pi * torch.arange(graph.size, dtype=torch.float64) / graph.size
        factor = 1 / (1 + smoothness * (2 - 2 * angle.cos()))
        waves = torch.fft.rfft(z, dim=0) * factor[: graph.size // 2 + 1].unsqueeze(1)
        around: Tensor = torch.fft.irfft(waves, graph.size, dim=0)
        return around / factor.square().mean().sqrt()
    a = torch.from_numpy(graph.weights.matrix().toarray())
    filtered = torch.linalg.inv(torch.eye(len(a)).double() + smoothness * (torch.diag(a.sum(1)) - a))
    spread: Tensor = filtered.square().sum(1, keepdim=True).sqrt()
    smooth: Tensor = filtered @ z / spread
    return smooth
