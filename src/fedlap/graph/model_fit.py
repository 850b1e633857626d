"""Fit of a graph to models, and to another graph."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from scipy.sparse import triu
from torch import Tensor

from fedlap.errors import InputError
from fedlap.graph.graph import Graph
from fedlap.graph.weights import DENSE_UP_TO, CompleteWeights
from fedlap.randomness import draws

RANDOM_ORDERS = 100  # random permutations of the clients that a fit is compared with


@dataclass(frozen=True)
class GraphFit:
    """Smoothness of models on a graph, compared with random assignments of the same models to its clients."""

    smoothness: float  # tr(WᵀLW) = Σ_{k<ℓ} a_kℓ ‖w_k − w_ℓ‖²
    by_chance: float  # mean smoothness over all permutations of the clients
    as_smooth: int | None  # permutations of RANDOM_ORDERS at least as smooth; None for large graphs
    neighbours_apart: float | None  # root mean square distance between neighbours; None without edges
    all_apart: float  # root mean square distance between any two clients

    @staticmethod
    def of(graph: Graph, models: Float[Tensor, "client param"]) -> "GraphFit":
        """Compute the fit for models in the order of the graph's clients."""
        if graph.server:
            raise InputError(
                "the graph has a server vertex, whose model is not stored; use a graph of clients only",
                scope="graph",
            )
        clients = len(models)
        weight = float(graph.weights.degrees(torch.zeros(1, dtype=torch.float64)).sum()) / 2
        # The mean squared distance between two clients is twice the variance.
        apart = 2 * float(_centre(models).square().sum()) / max(1, clients - 1)
        complete = isinstance(graph.weights, CompleteWeights)
        near = apart * graph.edges if complete else float(_set_unit_weights(graph).smoothness(models))
        value = float(graph.smoothness(models))
        return GraphFit(
            smoothness=value,
            by_chance=weight * apart,
            as_smooth=_count_as_smooth(graph, models, value) if clients <= DENSE_UP_TO else None,
            neighbours_apart=math.sqrt(near / graph.edges) if graph.edges else None,
            all_apart=math.sqrt(apart),
        )

    def as_dict(self) -> dict[str, Any]:
        """Return all numbers as a dictionary."""
        return asdict(self)

    def format_lines(self) -> Iterator[str]:
        """Yield the lines of the printed fit."""
        if self.by_chance == 0:
            yield (
                "models     all equal" if self.all_apart == 0 else "models     no edge joins any two of them"
            )
            return
        ratio = self.smoothness / self.by_chance
        value = f"models     tr(WᵀLW) = {self.smoothness:.4g}"
        yield f"{value}, {100 * ratio:.3g} % of its mean over random permutations of the clients"
        if self.as_smooth is not None:
            share = f"{self.as_smooth} of {RANDOM_ORDERS}"
            yield f"           ({share} random permutations are at least as smooth)"
        near, far = self.neighbours_apart, self.all_apart
        distances = f"between neighbours {near:.4g}, between any two clients {far:.4g}"
        yield f"distance   {distances} (root mean square)"


def _centre(models: Float[Tensor, "client param"]) -> Float64[Tensor, "client param"]:
    return models.double() - models.double().mean(0)


def _set_unit_weights(graph: Graph) -> Graph:
    """Return the graph with all weights 1."""
    return Graph.from_matrix(graph.weights.matrix() != 0, graph.clients)


def _count_as_smooth(graph: Graph, models: Float[Tensor, "client param"], value: float) -> int:
    """Count the random permutations of the clients with at most this value of tr(WᵀLW)."""
    ends, weight = list_edges(graph)
    centred = _centre(models)
    products = (centred @ centred.T).numpy()
    size = np.diag(products)
    squares = size[:, None] + size - 2 * products
    stream = draws(0, "sample")
    count = 0
    for number in range(RANDOM_ORDERS):
        begin, end = stream.permutation(0, number, len(models)).numpy()[ends]
        count += float(weight @ squares[begin, end]) <= value * (1 + 1e-9)
    return count


def list_edges(graph: Graph) -> tuple[Int64[np.ndarray, "2 edge"], Float64[np.ndarray, "edge"]]:
    """Return both ends and the weight of every edge, each edge once."""
    entries = triu(graph.weights.matrix(), 1).tocoo()
    return np.stack([entries.row, entries.col]).astype(np.int64), entries.data.astype(np.float64)


def compute_average_precision(learned: Graph, truth: Graph) -> float:
    """Compute the area under the precision–recall curve of learned weights, over all pairs and true edges.

    Pairs with equal weights share one threshold; pairs without an edge come last.
    """
    if not truth.edges:
        raise InputError("the true graph has no edges; expected at least one", scope="graph")
    (begin, end), weight = list_edges(learned)
    true_begin, true_end = list_edges(truth)[0]
    order = np.argsort(-weight, kind="stable")
    correct = np.isin((begin * truth.size + end)[order], true_begin * truth.size + true_end).cumsum()
    last = np.flatnonzero(np.diff(weight[order], append=-1.0))  # the last pair of each weight
    hits = np.append(correct[last], truth.edges)
    taken = np.append(last + 1, truth.size * (truth.size - 1) // 2)
    return float((np.diff(hits, prepend=0) / truth.edges * hits / taken).sum())
