"""What a graph is like, and how fast mixing over it goes."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64
from scipy.linalg import eigvalsh
from scipy.sparse import csr_array, diags_array
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

from fedlap.graph.graph import SERVER, Graph
from fedlap.graph.sparse_weights import SparseWeights
from fedlap.graph.spectrum import largest, second_smallest
from fedlap.graph.weights import DENSE_UP_TO, CompleteWeights, Weights

# For λ₂ of a large graph. Where it takes more, the graph is nearly cut in two and so is cheap to factor.
RESTARTS = 30
TOLERANCE = 1e-5
NAMED = 8  # clients without neighbours that are named

Range = tuple[float, float, float]  # least, median, largest


@dataclass(frozen=True)
class GraphDescription:
    """The facts of a graph."""

    clients: int
    server: bool  # whether one more vertex stands for a server
    edges: int
    components: tuple[int, ...]  # how many vertices each has, the largest first
    isolated: tuple[str, ...]  # vertices without neighbours
    neighbours: Range  # how many a vertex has
    degrees: Range  # sums of a vertex's weights
    weights: tuple[float, float] | None  # least and largest; None where there are no edges
    lambda2: float  # 0 where the graph is not connected
    slowest: float  # the smallest eigenvalue of L above zero: λ₂, or the least λ₂ of its components
    rho: float

    @staticmethod
    def of(graph: Graph) -> "GraphDescription":
        """Counted once."""
        each = graph.weights.degrees(torch.zeros(1, dtype=torch.float64)).flatten().numpy()
        if isinstance(graph.weights, CompleteWeights):
            number = graph.size - 1 if graph.edges else 0
            count, span = np.full(graph.size, number), (graph.weights.weight,) * 2
        else:
            matrix = graph.weights.matrix()
            count = np.diff(matrix.indptr)
            span = (float(matrix.data.min(initial=np.inf)), float(matrix.data.max(initial=0)))
        sizes = np.bincount(component(graph.weights))
        slowest = smallest_positive(graph.weights)
        names = vertices(graph)
        return GraphDescription(
            clients=graph.size - graph.server,
            server=graph.server,
            edges=graph.edges,
            components=tuple(sizes.tolist()),
            isolated=tuple(names[place] for place in np.flatnonzero(count == 0)),
            neighbours=_range(count),
            degrees=_range(each),
            weights=span if graph.edges else None,
            lambda2=slowest if len(sizes) == 1 else 0.0,
            slowest=slowest,
            rho=graph.rho,
        )

    @property
    def connected(self) -> bool:
        """Whether every two vertices are joined by a path."""
        return len(self.components) == 1

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        return asdict(self)

    def lines(self) -> Iterator[str]:
        """For people."""
        size = self.clients + self.server
        pairs = max(1, size * (size - 1) // 2)
        yield f"clients    {self.clients:,}{' and a vertex of the server' if self.server else ''}"
        yield f"edges      {self.edges:,}, {100 * self.edges / pairs:.3g} % of all pairs"
        if self.connected:
            yield "connected  yes"
        else:
            shown = ", ".join(f"{size:,}" for size in self.components[:NAMED])
            more = ", …" if len(self.components) > NAMED else ""
            yield f"connected  no: {len(self.components):,} components, of {shown}{more} clients"
        if self.isolated:
            named = ", ".join(self.isolated[:NAMED]) + (", …" if len(self.isolated) > NAMED else "")
            yield f"alone      {len(self.isolated):,} without any neighbour: {named}"
        yield f"neighbours {_said(self.neighbours)}"
        yield f"degrees    {_said(self.degrees)} (the sum of a client's weights)"
        if self.weights is not None:
            low, high = self.weights
            yield f"weights    {'all ' if low == high else f'{low:.4g} to '}{high:.4g}"
        if self.connected:
            yield f"λ₂         {self.lambda2:.4g}, how well it is connected"
        else:
            yield f"λ₂         0: nothing mixes between components; within them {self.slowest:.4g} or more"
        yield f"ρ          {self.rho:.4g}, the largest eigenvalue of the Laplacian"


def component(weights: Weights) -> Int64[np.ndarray, "vertex"]:
    """The number of each vertex's component, those with most vertices first."""
    if isinstance(weights, CompleteWeights):
        return np.zeros(weights.size, np.int64) if weights.edges else np.arange(weights.size)
    found = connected_components(weights.matrix(), directed=False)[1]
    rank = np.argsort(np.argsort(-np.bincount(found), kind="stable"), kind="stable")
    return np.asarray(rank[found].astype(np.int64))


def vertices(graph: Graph) -> tuple[str, ...]:
    """The names of all vertices; those of a bare matrix are numbered."""
    clients = graph.size - graph.server
    names = tuple(map(str, range(clients))) if graph.clients is None else graph.clients
    return (*names, SERVER) if graph.server else names


def _range(values: np.ndarray) -> Range:
    return float(values.min()), float(np.median(values)), float(values.max())


def _said(values: Range) -> str:
    least, median, most = (f"{value:.4g}" for value in values)
    return f"{least} each" if least == most else f"{least} to {most}, median {median}"


def smallest_positive(weights: Weights) -> float:
    """The smallest eigenvalue of L above zero; 0 where there are no edges."""
    if isinstance(weights, CompleteWeights):
        return largest(weights)
    matrix, parts = weights.matrix(), component(weights)
    # Vertices sorted by component, so that each component is a block.
    order = np.argsort(parts, kind="stable")
    ends = np.cumsum(np.bincount(parts))
    sorted_ = csr_array(matrix[order][:, order]) if len(ends) > 1 else matrix
    found = [
        _second(csr_array(sorted_[begin:end, begin:end]))
        for begin, end in zip((0, *ends[:-1]), ends, strict=True)
        if end - begin > 1
    ]
    return min(found, default=0.0)


def _second(matrix: csr_array) -> float:
    """λ₂ of a connected graph."""
    if matrix.shape[0] <= DENSE_UP_TO:
        return float(eigvalsh(np.diag(matrix.sum(axis=1)) - matrix.toarray())[1])
    rho = largest(SparseWeights(matrix))
    L = csr_array(diags_array(matrix.sum(axis=1)) - matrix)
    # The eigenvalue 0, of models that are all alike, moved up to ρ.
    moved = LinearOperator(L.shape, partial(_moved, L, rho), dtype=float)
    start = np.cos(np.arange(L.shape[0]))  # fixed, so that the same graph always gives the same number
    settings = {"which": "SA", "ncv": 40, "tol": TOLERANCE, "maxiter": RESTARTS}
    try:
        return float(eigsh(moved, k=1, v0=start, return_eigenvectors=False, **settings)[0])
    except ArpackNoConvergence:
        return second_smallest(SparseWeights(matrix))


def _moved(L: csr_array, rho: float, v: Float64[np.ndarray, "..."]) -> Float64[np.ndarray, "..."]:
    """L v, and ρ times the mean of v."""
    return np.asarray(L @ v + rho * v.mean())


@dataclass(frozen=True)
class Speed:
    """What a round of mixing alone, all clients taking part, does to disagreement between models.

    Of disagreement along an eigenvector of L with eigenvalue λ, explicit mixing leaves |1 − μRηλ|, implicit
    mixing 1/(1 + μRηλ). Here stands the share that is left of what goes slowest.
    """

    strength: float  # η
    product: float  # μRηρ; explicit mixing is stable up to 2
    explicit: float
    implicit: float

    @staticmethod
    def of(facts: GraphDescription, strength: float, length: float) -> "Speed":
        """For this η and μR."""
        least, most = (strength * length * value for value in (facts.slowest, facts.rho))
        return Speed(strength, most, max(abs(1 - least), abs(1 - most)), 1 / (1 + least))

    def as_dict(self) -> dict[str, Any]:
        """For machines; None where disagreement is never halved."""
        halved = {
            f"{name}_rounds_to_halve": None if math.isinf(rounds := to_halve(share)) else rounds
            for name, share in {"explicit": self.explicit, "implicit": self.implicit}.items()
        }
        return {**asdict(self), **halved}


def to_halve(share: float) -> float:
    """Rounds until half of it is left, where each leaves this share."""
    if share >= 1 - 1e-12:
        return math.inf
    return math.log(0.5) / math.log(share) if share > 0 else 0.0
