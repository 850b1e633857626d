"""Made-up clients whose true models are smooth on a known graph, so that what the graph is worth is known."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float64
from torch import Tensor

from fedlap.errors import real, unknown, whole
from fedlap.federation import Federation
from fedlap.graph import Graph
from fedlap.randomness import digest, draws


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
    seed: int = 0,
) -> Synthetic:
    """Linear clients around a ring: neighbours alike, opposite ones strangers.

    The true models are Gaussian on the ring with precision (I + smoothness·L)², scaled so that a weight has
    standard deviation `size`/√features. Client k has between rows/2 and 3·rows/2 training rows.

    task: labels drawn from a client's softmax, or targets x·w + noise.
    clients: how many.
    features: standard normal ones.
    labels: classes (ignored for regression, which has one target).
    rows: mean number of training rows of a client.
    test_rows: test rows of each client.
    smoothness: how slowly models change along the ring.
    size: how large the true models are.
    noise: standard deviation of the noise on targets (ignored for classification).
    seed: of everything.
    """
    if task not in ("classification", "regression"):
        raise unknown("task of synthetic data", task, ("classification", "regression"))
    least = {"clients": 1, "features": 1, "rows": 1, "test_rows": 0, "labels": 2}
    counts = {
        "clients": clients,
        "features": features,
        "rows": rows,
        "test_rows": test_rows,
        "labels": labels,
    }
    for name, value in counts.items():
        whole(f"synthetic: {name}", value, least[name])
    for name, amount in {"smoothness": smoothness, "size": size, "noise": noise}.items():
        real(f"synthetic: {name}", amount, zero=True)
    names = tuple(str(k) for k in range(clients))
    graph = Graph.ring(names)
    stream = draws(seed, "data")
    outputs = labels if task == "classification" else 1
    W = _smooth(stream.normal(0, 0, clients * (features + 1) * outputs).view(clients, -1), graph, smoothness)
    W *= size / features**0.5
    weight, bias = W[:, : features * outputs].view(clients, outputs, features), W[:, features * outputs :]
    train, test = {}, {}
    for k, name in enumerate(names):
        own = draws(seed, "data", 1)
        at = digest(name)
        n = max(1, round(rows * (0.5 + float(own.uniform(at, 0, 1)))))
        total = n + test_rows
        x = own.normal(at, 1, total * features).view(total, features)
        scores = x @ weight[k].T + bias[k]
        if task == "classification":
            # The largest of scores plus Gumbel noise is a draw from their softmax.
            gumbel = -(-own.uniform(at, 2, scores.numel()).log()).log().view_as(scores)
            y = (scores + gumbel).argmax(1)
        else:
            y = scores + noise * own.normal(at, 2, scores.numel()).view_as(scores)
        train[name], test[name] = (x[:n], y[:n]), (x[n:], y[n:])
    classes = labels if task == "classification" else None
    return Synthetic(Federation.from_arrays(train, test=test, labels=classes), graph, W)


def _smooth(
    z: Float64[Tensor, "client param"], graph: Graph, smoothness: float
) -> Float64[Tensor, "client param"]:
    """(I + smoothness·L)⁻¹ z, scaled back to unit variance."""
    a = torch.from_numpy(graph.weights.matrix().toarray())
    filtered = torch.linalg.inv(torch.eye(len(a)).double() + smoothness * (torch.diag(a.sum(1)) - a))
    spread: Tensor = filtered.square().sum(1, keepdim=True).sqrt()
    smooth: Tensor = filtered @ z / spread
    return smooth
