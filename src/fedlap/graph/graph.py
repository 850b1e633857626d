"""The Graph: symmetric, non-negative weights between clients, validated on construction."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from scipy.sparse import coo_array, csr_array
from torch import Tensor

from fedlap.errors import InputError, suggest_names
from fedlap.graph.sparse_weights import AllModels, ChosenModels, Neighbours, SparseWeights, VertexIds
from fedlap.graph.spectrum import compute_lambda2, compute_rho, count_components
from fedlap.graph.validate import (
    Edge,
    check_entries,
    locate_edges,
    parse_matrix,
    validate_edge,
    validate_names,
    validate_weight,
)
from fedlap.graph.weights import DENSE_UP_TO, CompleteWeights, Weights, build_weights
from fedlap.randomness import digest_names, draws
from fedlap.summaries import build_html_table, build_summary, count_nouns, summarise_names

SMOOTHNESS_BLOCK = 16_000_000  # values per block in double precision (128 MB)
SERVER = "server"  # the name of the vertex that is not a client


@dataclass(frozen=True, eq=False)
class Graph:
    """Weights a_kℓ between clients, and the Laplacian L = D − A.

    `clients` is None for a graph built from a bare matrix: its rows then follow the order of the federation
    that it is used with. With `server`, one more vertex, the last, stands for a server with F₀ = 0.
    """

    clients: tuple[str, ...] | None
    weights: Weights
    server: bool = False

    def __repr__(self) -> str:
        clients, server = count_nouns(self.size - self.server, "client"), "a server" if self.server else ""
        return build_summary("Graph", clients, server, count_nouns(self.edges, "edge"))

    def _repr_html_(self) -> str:
        facts = {
            "clients": "unnamed" if self.clients is None else summarise_names(self.clients),
            "edges": f"{self.edges:,}",
            "components": f"{self.components:,}",
        }
        return build_html_table("Graph", facts | ({"server": "one more vertex"} if self.server else {}))

    @classmethod
    def complete(cls, clients: Sequence[str], weight: float = 1.0) -> "Graph":
        """Join every pair of clients with the same weight: ρ = N · weight.

        weight: weight of every edge.
        """
        names = validate_names(clients)
        return cls(names, CompleteWeights(len(names), validate_weight(weight)))

    @classmethod
    def empty(cls, clients: Sequence[str]) -> "Graph":
        """Build a graph without edges."""
        return cls.from_edges([], clients)

    @classmethod
    def path(cls, clients: Sequence[str], weight: float = 1.0) -> "Graph":
        """Join each client to the next one, in the order of `clients`.

        weight: weight of every edge.
        """
        names = validate_names(clients)
        index = np.arange(len(names))
        graph = cls._connect(names, index[:-1], index[1:], weight)
        return graph._with_rho(weight * (2 - 2 * math.cos(math.pi * (graph.size - 1) / graph.size)))

    @classmethod
    def ring(cls, clients: Sequence[str], weight: float = 1.0) -> "Graph":
        """Join the clients in a path and its ends to each other (two clients have one edge).

        weight: weight of every edge.
        """
        names = validate_names(clients)
        index = np.arange(len(names))
        if len(names) < 3:
            return cls._connect(names, index[:-1], index[1:], weight)
        graph = cls._connect(names, index, np.roll(index, -1), weight)
        return graph._with_rho(weight * (2 - 2 * math.cos(2 * math.pi * (graph.size // 2) / graph.size)))

    @classmethod
    def star(cls, clients: Sequence[str], weight: float = 1.0, *, server: bool = False) -> "Graph":
        """Join the first client to all others or, with `server`, a server vertex to all clients.

        weight: weight of every edge.
        server: add a vertex without rows as the centre.
        """
        names = validate_names(clients)
        index = np.arange(len(names))
        if not server:
            return cls._connect(names, 0 * index[1:], index[1:], weight)
        if SERVER in names:
            raise InputError(
                f"a client is named {SERVER!r}, which is reserved for the server's vertex; rename the client",
                scope="graph",
            )
        with_server = cls._connect((*names, SERVER), len(names) + 0 * index, index, weight)
        return cls(names, with_server.weights, server=True)

    @classmethod
    def from_edges(cls, edges: Iterable[Edge], clients: Sequence[str] | None = None) -> "Graph":
        """Build a graph from (client, client) or (client, client, weight), each pair once.

        `clients` sets the order and adds clients without edges; by default, the order of first appearance.
        """
        triples = [validate_edge(edge) for edge in edges]
        if clients is None:
            clients = list(dict.fromkeys(name for a, b, _ in triples for name in (a, b)))
        names = validate_names(clients)
        return cls._from_indices(names, locate_edges(triples, names), np.array([edge[2] for edge in triples]))

    @classmethod
    def _connect(
        cls,
        names: tuple[str, ...],
        begin: Int64[np.ndarray, "edge"],
        end: Int64[np.ndarray, "edge"],
        weight: float,
    ) -> "Graph":
        """Join clients at these indices with the same weight."""
        value = validate_edge((names[begin[0]], names[end[0]], weight))[2] if len(begin) else 0.0
        return cls._from_indices(names, np.stack([begin, end]), np.full(len(begin), value))

    @classmethod
    def _from_indices(
        cls, names: tuple[str, ...], ends: Int64[np.ndarray, "2 edge"], values: Float64[np.ndarray, "edge"]
    ) -> "Graph":
        """Join clients at these indices with these weights."""
        matrix = coo_array(
            (np.tile(values, 2), (ends.ravel(), ends[::-1].ravel())), shape=(len(names),) * 2, dtype=float
        )
        return cls(names, build_weights(csr_array(matrix)))

    @classmethod
    def from_matrix(cls, matrix: Any, clients: Sequence[str] | None = None) -> "Graph":
        """Build a graph from a square matrix (array, tensor or scipy.sparse).

        It must be symmetric and non-negative with a zero diagonal.
        """
        a = parse_matrix(matrix)
        names = None if clients is None else validate_names(clients)
        if names is not None and len(names) != a.shape[0]:
            raise InputError(
                f"a {a.shape[0]}×{a.shape[0]} matrix for {len(names)} clients; expected one row per client",
                scope="graph",
            )
        check_entries(a, names)
        return cls(names, build_weights(csr_array((a + a.T) / 2)))

    @classmethod
    def from_checked(cls, clients: tuple[str, ...], matrix: csr_array, rho: float) -> "Graph":
        """Build a graph from a valid matrix without explicit zeros, which is not copied, and its known ρ."""
        weights = build_weights(matrix) if matrix.shape[0] <= DENSE_UP_TO else SparseWeights(matrix)
        return cls(clients, weights)._with_rho(rho)

    @property
    def size(self) -> int:
        """Number of vertices, including a server's."""
        return self.weights.size

    @cached_property
    def rho(self) -> float:
        """ρ, the largest eigenvalue of L."""
        return compute_rho(self.weights)

    def _with_rho(self, rho: float) -> "Graph":
        """Cache a known ρ and return this graph."""
        self.__dict__["rho"] = rho
        return self

    @cached_property
    def lambda2(self) -> float:
        """λ₂, the second smallest eigenvalue of L: positive if and only if the graph is connected."""
        return compute_lambda2(self.weights)

    @cached_property
    def components(self) -> int:
        """Number of connected components."""
        return count_components(self.weights)

    def neighbours(self, place: int) -> Neighbours:
        """Return indices and weights of one vertex's neighbours."""
        return self.weights.neighbours(place)

    @cached_property
    def edges(self) -> int:
        """Number of edges."""
        return self.weights.edges

    @cached_property
    def largest_degree(self) -> float:
        """Largest sum of weights of a client's edges."""
        return float(self._degrees()[: self.size - self.server].max())

    def count_isolated(self) -> int:
        """Return the number of vertices without an edge."""
        return int((self._degrees() == 0).sum())

    def _degrees(self) -> Float[Tensor, "vertex 1"]:
        """Return each vertex's sum of weights, in double precision on the host."""
        return self.weights.degrees(torch.zeros(1, dtype=torch.float64))

    def pull(self, ids: VertexIds, w: ChosenModels, others: AllModels | None = None) -> ChosenModels:
        """Return Σ_ℓ a_kℓ (w_k − w_ℓ) for each vertex k in `ids`, whose models are the rows of `w`.

        The sum runs over all neighbours ℓ; models of neighbours outside `ids` are read from `others`, which
        has one row per vertex. Without `others`, the sum runs over neighbours in `ids` only.
        """
        degrees, sums = self.weights.sum_neighbours(ids, w, others)
        return (degrees * w).sub_(sums)

    def mix_(
        self, w: ChosenModels, step: float, ids: VertexIds | None = None, others: AllModels | None = None
    ) -> ChosenModels:
        """Update w_k ← w_k − step Σ_ℓ a_kℓ (w_k − w_ℓ) in place, summed as in `pull`; by default all k."""
        everyone = ids is None or others is None or len(ids) == self.size
        if everyone and isinstance(self.weights, CompleteWeights):
            # On a complete graph all models move towards their mean: two passes through memory.
            return w.lerp_(w.mean(0, keepdim=True), step * self.weights.weight * len(w))
        pull = self.apply_laplacian(w) if ids is None else self.pull(ids, w, others)
        return w.sub_(pull, alpha=step)

    def smoothness(self, W: AllModels) -> Float[Tensor, ""]:
        """Return tr(WᵀLW) = ½ Σ_k Σ_ℓ a_kℓ ‖w_k − w_ℓ‖²."""
        # The mean model adds nothing to the sum; without it, double precision preserves small differences.
        total = W.new_zeros((), dtype=torch.float64)
        for block in W.split(max(1, SMOOTHNESS_BLOCK // len(W)), 1):  # so that copies stay small
            centred = block.double() - block.double().mean(0)
            total = total + (centred * self.apply_laplacian(centred)).sum()
        return total

    def apply_laplacian(self, W: AllModels, public: AllModels | None = None) -> AllModels:
        """Return L W: for every vertex, Σ_ℓ a_kℓ (w_k − w_ℓ).

        public: what neighbours know of the models, if that is not W: a vertex reads the others' w_ℓ there.
        """
        return (self.weights.degrees(W) * W).sub_(self.weights.multiply(W if public is None else public))

    def align(self, clients: Sequence[str]) -> "Graph":
        """Return this graph in the order of `clients`; raise InputError unless both have the same names."""
        wanted = tuple(clients)
        if self.clients is None:
            if self.size != len(wanted):
                raise InputError(
                    f"the graph has {self.size} vertices; expected {len(wanted)}, the number of clients",
                    scope="graph",
                )
            return Graph(wanted, self.weights, self.server)._with_rho(self.rho)
        if self.clients == wanted:
            return self
        for missing in sorted(set(wanted) - set(self.clients)):
            raise InputError(
                f"client {missing!r} of the data is not in the graph; "
                f"{suggest_names(missing, set(self.clients) - set(wanted))}use the same names in both",
                scope="graph",
            )
        for extra in sorted(set(self.clients) - set(wanted)):
            raise InputError(
                f"{extra!r} in the graph is not a client of the data; use the same names in both",
                scope="graph",
            )
        if isinstance(self.weights, CompleteWeights):
            return Graph(wanted, self.weights, self.server)
        index = {name: place for place, name in enumerate((*self.clients, SERVER))}
        places = [index[name] for name in (*wanted, *([SERVER] if self.server else []))]
        reordered = Graph(
            wanted, build_weights(csr_array(self.weights.matrix()[places][:, places])), self.server
        )
        return reordered._with_rho(self.rho)  # the order of clients does not change ρ

    def shuffle(self, seed: int = 0) -> "Graph":
        """Return the graph with the names of its clients permuted: a control for the value of its edges.

        Degrees, weights and eigenvalues stay; only the clients at the vertices differ. The permutation is
        uniform and depends on the seed and the names, not on their order. By chance it may leave some names,
        or all of them, at their vertices. A server's vertex stays the server's.
        """
        if self.clients is None:
            raise InputError(
                "a graph without names cannot be shuffled; pass clients when it is built, or call align",
                scope="graph",
            )
        digests = digest_names(self.clients)
        by_name, by_draw = (
            digests.argsort().tolist(),
            draws(seed, "vertices").keys(digests).argsort().tolist(),
        )
        names = list(self.clients)
        for place, other in zip(by_name, by_draw, strict=True):
            names[place] = self.clients[other]
        return Graph(tuple(names), self.weights, self.server)._with_rho(self.rho).align(self.clients)
