"""How well a graph fits models, and another graph."""

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

ORDERS = 100  # random orders of the clients that a fit is held against


@dataclass(frozen=True)
class Fit:
    """How smooth models are on a graph, beside the same models handed to its clients at random."""

    smoothness: float  # tr(WᵀLW) = Σ_{k<ℓ} a_kℓ ‖w_k − w_ℓ‖²
    by_chance: float  # its mean over all orders of the clients
    as_smooth: int | None  # of ORDERS random orders, those that are at least as smooth; None for large graphs
    neighbours_apart: float | None  # root mean square distance of neighbours; None where there are none
    all_apart: float  # of any two clients

    @staticmethod
    def of(graph: Graph, models: Float[Tensor, "client param"]) -> "Fit":
        """Of models in the order of the graph's clients."""
        if graph.server:
            raise InputError(
                "the server's vertex has no model that is kept, so the fit is not known", scope="graph"
            )
        clients = len(models)
        weight = float(graph.weights.degrees(torch.zeros(1, dtype=torch.float64)).sum()) / 2
        # The mean squared distance of two clients is twice the variance.
        apart = 2 * float(_centred(models).square().sum()) / max(1, clients - 1)
        complete = isinstance(graph.weights, CompleteWeights)
        near = apart * graph.edges if complete else float(_unweighted(graph).smoothness(models))
        value = float(graph.smoothness(models))
        return Fit(
            smoothness=value,
            by_chance=weight * apart,
            as_smooth=_as_smooth(graph, models, value) if clients <= DENSE_UP_TO else None,
            neighbours_apart=math.sqrt(near / graph.edges) if graph.edges else None,
            all_apart=math.sqrt(apart),
        )

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        return asdict(self)

    def lines(self) -> Iterator[str]:
        """For people."""
        if self.by_chance == 0:
            yield "models     all the same" if self.all_apart == 0 else "models     no two of them are joined"
            return
        ratio = self.smoothness / self.by_chance
        value = f"models     tr(WᵀLW) = {self.smoothness:.4g}"
        yield f"{value}, {100 * ratio:.3g} % of what the same models give in a random order"
        if self.as_smooth is not None:
            yield f"           ({self.as_smooth} of {ORDERS} random orders of the clients are as smooth)"
        near, far = self.neighbours_apart, self.all_apart
        yield f"apart      neighbours {near:.4g}, any two clients {far:.4g} (root mean square distance)"


def _centred(models: Float[Tensor, "client param"]) -> Float64[Tensor, "client param"]:
    return models.double() - models.double().mean(0)


def _unweighted(graph: Graph) -> Graph:
    """All weights 1."""
    return Graph.from_matrix(graph.weights.matrix() != 0, graph.clients)


def _as_smooth(graph: Graph, models: Float[Tensor, "client param"], value: float) -> int:
    """How many random orders of the clients are as smooth."""
    ends, weight = pairs(graph)
    apart = _centred(models)
    products = (apart @ apart.T).numpy()
    size = np.diag(products)
    squares = size[:, None] + size - 2 * products
    stream = draws(0, "sample")
    count = 0
    for number in range(ORDERS):
        begin, end = stream.permutation(0, number, len(models)).numpy()[ends]
        count += float(weight @ squares[begin, end]) <= value * (1 + 1e-9)
    return count


def pairs(graph: Graph) -> tuple[Int64[np.ndarray, "2 edge"], Float64[np.ndarray, "edge"]]:
    """Both ends of every edge, each edge once, and its weight."""
    entries = triu(graph.weights.matrix(), 1).tocoo()
    return np.stack([entries.row, entries.col]).astype(np.int64), entries.data.astype(np.float64)


def average_precision(learned: Graph, truth: Graph) -> float:
    """The area under the precision–recall curve of learned weights, over all pairs, against true edges.

    Pairs of the same weight are taken together; those without an edge come last.
    """
    if not truth.edges:
        raise InputError("the true graph has no edges to be found", scope="graph")
    (begin, end), weight = pairs(learned)
    true_begin, true_end = pairs(truth)[0]
    order = np.argsort(-weight, kind="stable")
    right = np.isin((begin * truth.size + end)[order], true_begin * truth.size + true_end).cumsum()
    last = np.flatnonzero(np.diff(weight[order], append=-1.0))  # of those of the same weight
    hits = np.append(right[last], truth.edges)
    taken = np.append(last + 1, truth.size * (truth.size - 1) // 2)
    return float((np.diff(hits, prepend=0) / truth.edges * hits / taken).sum())
