"""Properties of a graph, and how fast mixing over it converges."""

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
from fedlap.graph.spectrum import compute_lambda2, compute_rho
from fedlap.graph.weights import DENSE_UP_TO, CompleteWeights, Weights

# For λ₂ of a large graph. A graph that needs more restarts is nearly disconnected and cheap to factorise.
EIGEN_RESTARTS = 30
LAMBDA2_TOLERANCE = 1e-5
LISTED_AT_MOST = 8  # components, and clients without neighbours, that the text lists

MinMedianMax = tuple[float, float, float]


@dataclass(frozen=True)
class GraphDescription:
    """Size, connectivity and spectrum of a graph."""

    clients: int
    server: bool  # True if one more vertex stands for a server
    edges: int
    components: tuple[int, ...]  # numbers of vertices, the largest component first
    isolated: tuple[str, ...]  # vertices without neighbours
    neighbours: MinMedianMax  # number per vertex
    degrees: MinMedianMax  # sum of weights per vertex
    weights: tuple[float, float] | None  # smallest and largest; None without edges
    lambda2: float  # 0 if the graph is not connected
    slowest: float  # the smallest eigenvalue of L above zero: λ₂, or the smallest λ₂ of any component
    rho: float

    @staticmethod
    def of(graph: Graph) -> "GraphDescription":
        """Compute the description of a graph."""
        degrees = graph.weights.degrees(torch.zeros(1, dtype=torch.float64)).flatten().numpy()
        if isinstance(graph.weights, CompleteWeights):
            number = graph.size - 1 if graph.edges else 0
            count, span = np.full(graph.size, number), (graph.weights.weight,) * 2
        else:
            matrix = graph.weights.matrix()
            count = np.diff(matrix.indptr)
            span = (float(matrix.data.min(initial=np.inf)), float(matrix.data.max(initial=0)))
        sizes = np.bincount(label_components(graph.weights))
        slowest = find_smallest_positive_eigenvalue(graph.weights)
        names = list_vertices(graph)
        return GraphDescription(
            clients=graph.size - graph.server,
            server=graph.server,
            edges=graph.edges,
            components=tuple(sizes.tolist()),
            isolated=tuple(names[place] for place in np.flatnonzero(count == 0)),
            neighbours=_summarize(count),
            degrees=_summarize(degrees),
            weights=span if graph.edges else None,
            lambda2=slowest if len(sizes) == 1 else 0.0,
            slowest=slowest,
            rho=graph.rho,
        )

    @property
    def is_connected(self) -> bool:
        """True if a path joins every pair of vertices."""
        return len(self.components) == 1

    def as_dict(self) -> dict[str, Any]:
        """Return all properties as a dictionary."""
        return asdict(self)

    def format_lines(self) -> Iterator[str]:
        """Yield the lines of the printed description."""
        size = self.clients + self.server
        pairs = max(1, size * (size - 1) // 2)
        yield f"clients    {self.clients:,}{' and a server vertex' if self.server else ''}"
        yield f"edges      {self.edges:,}, {100 * self.edges / pairs:.3g} % of all pairs"
        if self.is_connected:
            yield "connected  yes"
        else:
            shown = ", ".join(f"{size:,}" for size in self.components[:LISTED_AT_MOST])
            more = ", …" if len(self.components) > LISTED_AT_MOST else ""
            yield f"connected  no: {len(self.components):,} components with {shown}{more} clients"
        if self.isolated:
            named = ", ".join(self.isolated[:LISTED_AT_MOST]) + (
                ", …" if len(self.isolated) > LISTED_AT_MOST else ""
            )
            yield f"isolated   {len(self.isolated):,} without neighbours: {named}"
        yield f"neighbours {_format_range(self.neighbours)}"
        yield f"degrees    {_format_range(self.degrees)} (sum of weights per client)"
        if self.weights is not None:
            low, high = self.weights
            yield f"weights    {'all ' if low == high else f'{low:.4g} to '}{high:.4g}"
        if self.is_connected:
            yield f"λ₂         {self.lambda2:.4g}, the algebraic connectivity"
        elif not self.edges:
            yield "λ₂         0, since the graph has no edges"
        else:
            positive = f"smallest positive eigenvalue {self.slowest:.4g}"
            yield f"λ₂         0, since the graph is not connected; {positive}"
        yield f"ρ          {self.rho:.4g}, the largest eigenvalue of the Laplacian"


def label_components(weights: Weights) -> Int64[np.ndarray, "vertex"]:
    """Return the component of each vertex as a number; 0 is the component with most vertices."""
    if isinstance(weights, CompleteWeights):
        return np.zeros(weights.size, np.int64) if weights.edges else np.arange(weights.size)
    found = connected_components(weights.matrix(), directed=False)[1]
    rank = np.argsort(np.argsort(-np.bincount(found), kind="stable"), kind="stable")
    return np.asarray(rank[found].astype(np.int64))


def list_vertices(graph: Graph) -> tuple[str, ...]:
    """Return the names of all vertices; vertices of a bare matrix are numbered."""
    clients = graph.size - graph.server
    names = tuple(map(str, range(clients))) if graph.clients is None else graph.clients
    return (*names, SERVER) if graph.server else names


def _summarize(values: np.ndarray) -> MinMedianMax:
    return float(values.min()), float(np.median(values)), float(values.max())


def _format_range(values: MinMedianMax) -> str:
    least, median, most = (f"{value:.4g}" for value in values)
    return f"{least} each" if least == most else f"{least} to {most}, median {median}"


def find_smallest_positive_eigenvalue(weights: Weights) -> float:
    """Compute the smallest eigenvalue of L above zero; 0 without edges."""
    if isinstance(weights, CompleteWeights):
        return compute_rho(weights)
    matrix, component_of = weights.matrix(), label_components(weights)
    # Vertices are sorted by component, so that each component is a diagonal block.
    order = np.argsort(component_of, kind="stable")
    ends = np.cumsum(np.bincount(component_of))
    sorted_ = csr_array(matrix[order][:, order]) if len(ends) > 1 else matrix
    found = [
        _compute_connected_lambda2(csr_array(sorted_[begin:end, begin:end]))
        for begin, end in zip((0, *ends[:-1]), ends, strict=True)
        if end - begin > 1
    ]
    return min(found, default=0.0)


def _compute_connected_lambda2(matrix: csr_array) -> float:
    """Compute λ₂ of a connected graph."""
    if matrix.shape[0] <= DENSE_UP_TO:
        return float(eigvalsh(np.diag(matrix.sum(axis=1)) - matrix.toarray())[1])
    rho = compute_rho(SparseWeights(matrix))
    L = csr_array(diags_array(matrix.sum(axis=1)) - matrix)
    # The eigenvalue 0, whose eigenvector is constant, is shifted to ρ.
    shifted = LinearOperator(L.shape, partial(_multiply_shifted, L, rho), dtype=float)
    start = np.cos(np.arange(L.shape[0]))  # fixed, so that the same graph always gives the same number
    settings = {"which": "SA", "ncv": 40, "tol": LAMBDA2_TOLERANCE, "maxiter": EIGEN_RESTARTS}
    try:
        return float(eigsh(shifted, k=1, v0=start, return_eigenvectors=False, **settings)[0])
    except ArpackNoConvergence:
        return compute_lambda2(SparseWeights(matrix))


def _multiply_shifted(L: csr_array, rho: float, v: Float64[np.ndarray, "..."]) -> Float64[np.ndarray, "..."]:
    """Return L v plus ρ times the mean of v."""
    return np.asarray(L @ v + rho * v.mean())


@dataclass(frozen=True)
class MixingSpeed:
    """Share of disagreement between models that one round of mixing alone leaves, with all clients sampled.

    Along an eigenvector of L with eigenvalue λ, explicit mixing leaves the share |1 − μRηλ| and implicit
    mixing 1/(1 + μRηλ). The fields hold the share along the slowest eigenvector.
    """

    strength: float  # η
    product: float  # μRηρ; explicit mixing is stable up to 2
    explicit: float
    implicit: float

    @staticmethod
    def of(properties: GraphDescription, strength: float, length: float) -> "MixingSpeed":
        """Compute the shares for η = `strength` and μR = `length`."""
        least, most = (strength * length * value for value in (properties.slowest, properties.rho))
        return MixingSpeed(strength, most, max(abs(1 - least), abs(1 - most)), 1 / (1 + least))

    def as_dict(self) -> dict[str, Any]:
        """Return shares and half-lives as a dictionary; None for disagreement that is never halved."""
        halved = {
            f"{name}_rounds_to_halve": None if math.isinf(rounds := count_rounds_to_halve(share)) else rounds
            for name, share in {"explicit": self.explicit, "implicit": self.implicit}.items()
        }
        return {**asdict(self), **halved}


def count_rounds_to_halve(share: float) -> float:
    """Return the rounds until half of the disagreement is left, if each round leaves this share."""
    if share >= 1 - 1e-12:
        return math.inf
    return math.log(0.5) / math.log(share) if share > 0 else 0.0
