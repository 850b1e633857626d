"""The Graph: symmetric, non-negative weights between clients, checked when made."""

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

from fedlap.errors import InputError
from fedlap.graph.sparse_weights import Chosen, Ids, Models, Neighbours
from fedlap.graph.spectrum import components, largest, second_smallest
from fedlap.graph.validate import (
    Edge,
    check_entries,
    checked_edge,
    checked_names,
    checked_square,
    checked_weight,
    places_of,
)
from fedlap.graph.weights import CompleteWeights, Weights, weights

BLOCK = 16_000_000  # values that are looked at together in double precision (128 MB)
SERVER = "server"  # the name of a vertex that is not a client


@dataclass(frozen=True, eq=False)
class Graph:
    """Weights a_kℓ between clients, and the Laplacian L = D − A.

    `clients` may be None for a graph made from a bare matrix: it then follows the order of whatever
    federation it meets. With `server`, one more vertex, last, stands for a server with F₀ = 0.
    """

    clients: tuple[str, ...] | None
    weights: Weights
    server: bool = False

    @classmethod
    def complete(cls, clients: Sequence[str], weight: float = 1.0) -> "Graph":
        """Every two clients joined with the same weight: ρ = N · weight."""
        names = checked_names(clients)
        return cls(names, CompleteWeights(len(names), checked_weight(weight)))

    @classmethod
    def empty(cls, clients: Sequence[str]) -> "Graph":
        """No edges: every client alone."""
        return cls.from_edges([], clients)

    @classmethod
    def path(cls, clients: Sequence[str], weight: float = 1.0) -> "Graph":
        """Each client joined to the next, in the order given."""
        names = checked_names(clients)
        each = np.arange(len(names))
        made = cls._joined(names, each[:-1], each[1:], weight)
        return made._with_rho(weight * (2 - 2 * math.cos(math.pi * (made.size - 1) / made.size)))

    @classmethod
    def ring(cls, clients: Sequence[str], weight: float = 1.0) -> "Graph":
        """A path whose ends are joined (two clients have one edge)."""
        names = checked_names(clients)
        each = np.arange(len(names))
        if len(names) < 3:
            return cls._joined(names, each[:-1], each[1:], weight)
        made = cls._joined(names, each, np.roll(each, -1), weight)
        return made._with_rho(weight * (2 - 2 * math.cos(2 * math.pi * (made.size // 2) / made.size)))

    @classmethod
    def star(cls, clients: Sequence[str], weight: float = 1.0, *, server: bool = False) -> "Graph":
        """The first client joined to all others; or, with `server`, a server vertex joined to all clients."""
        names = checked_names(clients)
        each = np.arange(len(names))
        if not server:
            return cls._joined(names, 0 * each[1:], each[1:], weight)
        if SERVER in names:
            raise InputError(
                f"a client is called {SERVER!r}, the name of the server's vertex; rename it", scope="graph"
            )
        whole = cls._joined((*names, SERVER), len(names) + 0 * each, each, weight)
        return cls(names, whole.weights, server=True)

    @classmethod
    def from_edges(cls, edges: Iterable[Edge], clients: Sequence[str] | None = None) -> "Graph":
        """From (client, client) or (client, client, weight), each pair once.

        `clients` says their order, and names those without edges.
        """
        listed = [checked_edge(edge) for edge in edges]
        if clients is None:
            clients = list(dict.fromkeys(name for a, b, _ in listed for name in (a, b)))
        names = checked_names(clients)
        return cls._of_places(names, places_of(listed, names), np.array([edge[2] for edge in listed]))

    @classmethod
    def _joined(
        cls,
        names: tuple[str, ...],
        begin: Int64[np.ndarray, "edge"],
        end: Int64[np.ndarray, "edge"],
        weight: float,
    ) -> "Graph":
        """Clients joined with the same weight."""
        value = checked_edge((names[begin[0]], names[end[0]], weight))[2] if len(begin) else 0.0
        return cls._of_places(names, np.stack([begin, end]), np.full(len(begin), value))

    @classmethod
    def _of_places(
        cls, names: tuple[str, ...], ends: Int64[np.ndarray, "2 edge"], values: Float64[np.ndarray, "edge"]
    ) -> "Graph":
        """Clients joined where their places say."""
        matrix = coo_array(
            (np.tile(values, 2), (ends.ravel(), ends[::-1].ravel())), shape=(len(names),) * 2, dtype=float
        )
        return cls(names, weights(csr_array(matrix)))

    @classmethod
    def from_matrix(cls, matrix: Any, clients: Sequence[str] | None = None) -> "Graph":
        """From a square matrix (array, tensor or scipy sparse): symmetric, non-negative, zero diagonal."""
        a = checked_square(matrix)
        names = None if clients is None else checked_names(clients)
        if names is not None and len(names) != a.shape[0]:
            raise InputError(
                f"a {a.shape[0]}×{a.shape[0]} matrix for {len(names)} clients; sizes must agree",
                scope="graph",
            )
        check_entries(a, names)
        return cls(names, weights(csr_array((a + a.T) / 2)))

    @property
    def size(self) -> int:
        """Number of vertices, a server's included."""
        return self.weights.size

    @cached_property
    def rho(self) -> float:
        """ρ, the largest eigenvalue of L."""
        return largest(self.weights)

    def _with_rho(self, rho: float) -> "Graph":
        """This graph, whose ρ is known already."""
        self.__dict__["rho"] = rho
        return self

    @cached_property
    def lambda2(self) -> float:
        """λ₂, the second smallest eigenvalue of L: positive where the graph is connected."""
        return second_smallest(self.weights)

    @cached_property
    def components(self) -> int:
        """Number of connected components."""
        return components(self.weights)

    def neighbours(self, place: int) -> Neighbours:
        """Places and weights of one vertex's neighbours."""
        return self.weights.row(place)

    @cached_property
    def edges(self) -> int:
        """Number of joined pairs."""
        return self.weights.edges

    def pull(self, ids: Ids, w: Chosen, elsewhere: Models | None = None) -> Chosen:
        """Σ_ℓ a_kℓ (w_k − w_ℓ) for each vertex k in `ids`, whose models are the rows of `w`.

        Over all neighbours ℓ, with those outside `ids` at their row of `elsewhere`; or, without it, over the
        neighbours in `ids` alone.
        """
        degrees, near = self.weights.near(ids, w, elsewhere)
        return (degrees * w).sub_(near)

    def mix_(self, w: Chosen, step: float, ids: Ids | None = None, elsewhere: Models | None = None) -> Chosen:
        """w_k ← w_k − step Σ_ℓ a_kℓ (w_k − w_ℓ), in place, the sum as in `pull`; without `ids`, at all."""
        everyone = ids is None or elsewhere is None or len(ids) == self.size
        if everyone and isinstance(self.weights, CompleteWeights):
            # All go towards their mean, in two passes through memory.
            return w.lerp_(w.mean(0, keepdim=True), step * self.weights.weight * len(w))
        pull = self.laplacian_times(w) if ids is None else self.pull(ids, w, elsewhere)
        return w.sub_(pull, alpha=step)

    def smoothness(self, W: Models) -> Float[Tensor, ""]:
        """tr(WᵀLW) = ½ Σ_k Σ_ℓ a_kℓ ‖w_k − w_ℓ‖²."""
        # What all models share adds nothing; without it, in double precision, small differences count.
        total = W.new_zeros((), dtype=torch.float64)
        for some in W.split(max(1, BLOCK // len(W)), 1):  # so that copies stay small
            apart = some.double() - some.double().mean(0)
            total = total + (apart * self.laplacian_times(apart)).sum()
        return total

    def laplacian_times(self, W: Models) -> Models:
        """L W: for every vertex, Σ_ℓ a_kℓ (w_k − w_ℓ)."""
        return (self.weights.degrees(W) * W).sub_(self.weights.times(W))

    def aligned(self, clients: Sequence[str]) -> "Graph":
        """The same graph in the order of `clients`, which must be its own."""
        wanted = tuple(clients)
        if self.clients is None:
            if self.size != len(wanted):
                raise InputError(
                    f"it has {self.size} vertices, the data {len(wanted)} clients; sizes must agree",
                    scope="graph",
                )
            return Graph(wanted, self.weights, self.server)._with_rho(self.rho)
        if self.clients == wanted:
            return self
        for missing in sorted(set(wanted) - set(self.clients)):
            raise InputError(
                f"client {missing!r} of the data is not in the graph; both need the same names", scope="graph"
            )
        for extra in sorted(set(self.clients) - set(wanted)):
            raise InputError(
                f"{extra!r} is not a client of the data; both need the same names", scope="graph"
            )
        if isinstance(self.weights, CompleteWeights):
            return Graph(wanted, self.weights, self.server)
        at = {name: place for place, name in enumerate((*self.clients, SERVER))}
        places = [at[name] for name in (*wanted, *([SERVER] if self.server else []))]
        made = Graph(wanted, weights(csr_array(self.weights.matrix()[places][:, places])), self.server)
        return made._with_rho(self.rho)  # the order of clients does not change it
