"""The Graph: symmetric, non-negative weights between clients, checked when made."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.sparse import coo_array, csr_array, issparse
from torch import Tensor

from fedlap.errors import InputError, unknown
from fedlap.graph.spectrum import components, largest, second_smallest
from fedlap.graph.weights import Chosen, CompleteWeights, Ids, Models, Weights, weights

SERVER = "server"  # the name of a vertex that is not a client

Edge = tuple[str, str] | tuple[str, str, float]


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
        names = _names(clients)
        return cls(names, CompleteWeights(len(names), _weight(weight)))

    @classmethod
    def empty(cls, clients: Sequence[str]) -> "Graph":
        """No edges: every client alone."""
        return cls.from_edges([], clients)

    @classmethod
    def path(cls, clients: Sequence[str], weight: float = 1.0) -> "Graph":
        """Each client joined to the next, in the order given."""
        names = _names(clients)
        return cls.from_edges([(a, b, weight) for a, b in pairwise(names)], names)

    @classmethod
    def ring(cls, clients: Sequence[str], weight: float = 1.0) -> "Graph":
        """A path whose ends are joined (two clients have one edge)."""
        names = _names(clients)
        ends = [(names[-1], names[0], weight)] if len(names) > 2 else []
        return cls.from_edges([(a, b, weight) for a, b in pairwise(names)] + ends, names)

    @classmethod
    def star(cls, clients: Sequence[str], weight: float = 1.0, *, server: bool = False) -> "Graph":
        """The first client joined to all others; or, with `server`, a server vertex joined to all clients."""
        names = _names(clients)
        if not server:
            return cls.from_edges([(names[0], name, weight) for name in names[1:]], names)
        if SERVER in names:
            raise InputError(
                f"graph: a client is called {SERVER!r}, the name of the server's vertex; rename it"
            )
        whole = cls.from_edges([(SERVER, name, weight) for name in names], (*names, SERVER))
        return cls(names, whole.weights, server=True)

    @classmethod
    def from_edges(cls, edges: Iterable[Edge], clients: Sequence[str] | None = None) -> "Graph":
        """From (client, client) or (client, client, weight), each pair once.

        `clients` says their order, and names those without edges.
        """
        listed = [_edge(edge) for edge in edges]
        names = _names(dict.fromkeys(n for a, b, _ in listed for n in (a, b)) if clients is None else clients)
        at = {name: place for place, name in enumerate(names)}
        seen: set[tuple[str, str]] = set()
        for a, b, _ in listed:
            for name in (a, b):
                if name not in at:
                    raise unknown("client in graph's edges", name, names)
            if a == b:
                raise InputError(f"graph: client {a!r} is joined to itself; leave such edges out")
            pair = (min(a, b), max(a, b))
            if pair in seen:
                raise InputError(
                    f"graph: the edge between {a!r} and {b!r} is given twice; give each pair once"
                )
            seen.add(pair)
        k, l = [at[a] for a, _, _ in listed], [at[b] for _, b, _ in listed]  # noqa: E741 — the paper's k, ℓ
        values = [e[2] for e in listed] * 2
        matrix = coo_array((np.array(values, dtype=float), (k + l, l + k)), shape=(len(names),) * 2)
        return cls(names, weights(csr_array(matrix)))

    @classmethod
    def from_matrix(cls, matrix: Any, clients: Sequence[str] | None = None) -> "Graph":
        """From a square matrix (array, tensor or scipy sparse): symmetric, non-negative, zero diagonal."""
        a = _square(matrix)
        names = None if clients is None else _names(clients)
        if names is not None and len(names) != a.shape[0]:
            raise InputError(
                f"graph: a {a.shape[0]}×{a.shape[0]} matrix for {len(names)} clients; sizes must agree"
            )
        _check_entries(a, names)
        return cls(names, weights(a))

    @property
    def size(self) -> int:
        """Number of vertices, a server's included."""
        return self.weights.size

    @cached_property
    def rho(self) -> float:
        """ρ, the largest eigenvalue of L."""
        return largest(self.weights)

    @cached_property
    def lambda2(self) -> float:
        """λ₂, the second smallest eigenvalue of L: positive where the graph is connected."""
        return second_smallest(self.weights)

    @cached_property
    def components(self) -> int:
        """Number of connected components."""
        return components(self.weights)

    def neighbours(self, place: int) -> tuple[np.ndarray, np.ndarray]:
        """Places and weights of one vertex's neighbours."""
        row = csr_array(self._sparse[[place]])
        return row.indices, row.data

    @cached_property
    def edges(self) -> int:
        """Number of joined pairs."""
        if isinstance(self.weights, CompleteWeights):
            return self.size * (self.size - 1) // 2 if self.weights.weight else 0
        return int(self._sparse.nnz) // 2

    @cached_property
    def _sparse(self) -> csr_array:
        sparse = self.weights.matrix()
        sparse.eliminate_zeros()
        return sparse

    def pull(self, ids: Ids, w: Chosen, elsewhere: Models | None = None) -> Chosen:
        """Σ_ℓ a_kℓ (w_k − w_ℓ) for each vertex k in `ids`, whose models are the rows of `w`.

        Over all neighbours ℓ, with those outside `ids` at their row of `elsewhere`; or, without it, over the
        neighbours in `ids` alone.
        """
        among = self.weights.induced(ids, w)
        if elsewhere is None or len(ids) == self.size:
            return among.degrees(w) * w - among.times(w)
        # The sum over neighbours is taken at their old models, then corrected for those in `ids`.
        near = self.weights.rows_times(ids, elsewhere) + among.times(w - elsewhere[ids])
        return self.weights.degrees(w)[ids] * w - near

    def smoothness(self, W: Models) -> Float[Tensor, ""]:
        """tr(WᵀLW) = ½ Σ_k Σ_ℓ a_kℓ ‖w_k − w_ℓ‖²."""
        return (W * self.laplacian_times(W)).sum()

    def laplacian_times(self, W: Models) -> Models:
        """L W: for every vertex, Σ_ℓ a_kℓ (w_k − w_ℓ)."""
        return self.weights.degrees(W) * W - self.weights.times(W)

    def aligned(self, clients: Sequence[str]) -> "Graph":
        """The same graph in the order of `clients`, which must be its own."""
        wanted = tuple(clients)
        if self.clients is None:
            if self.size != len(wanted):
                raise InputError(
                    f"graph: it has {self.size} vertices, the data {len(wanted)} clients; sizes must agree"
                )
            return Graph(wanted, self.weights, self.server)
        if self.clients == wanted:
            return self
        for missing in sorted(set(wanted) - set(self.clients)):
            raise InputError(
                f"graph: client {missing!r} of the data is not in the graph; both need the same names"
            )
        for extra in sorted(set(self.clients) - set(wanted)):
            raise InputError(f"graph: {extra!r} is not a client of the data; both need the same names")
        places = [self.clients.index(name) for name in wanted] + ([len(wanted)] if self.server else [])
        if isinstance(self.weights, CompleteWeights):
            return Graph(wanted, self.weights, self.server)
        return Graph(wanted, weights(csr_array(self._sparse[places][:, places])), self.server)


def _names(clients: Iterable[str]) -> tuple[str, ...]:
    names = tuple(str(name) for name in clients)
    if not names:
        raise InputError("graph: it has no clients; give their names")
    if len(set(names)) < len(names):
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise InputError(f"graph: client {twice!r} is named twice")
    return names


def _edge(edge: Edge) -> tuple[str, str, float]:
    if isinstance(edge, str) or len(edge) not in (2, 3):
        raise InputError(f"graph: the edge {edge!r} is not (client, client) or (client, client, weight)")
    try:
        weight = float(edge[2]) if len(edge) == 3 else 1.0
    except (TypeError, ValueError) as error:
        raise InputError(f"graph: the edge {edge!r} has a weight that is not a number") from error
    return str(edge[0]), str(edge[1]), _weight(weight)


def _square(matrix: Any) -> csr_array:
    """The matrix in sparse form, without explicit zeros."""
    if isinstance(matrix, Tensor):
        matrix = matrix.detach().to_dense().cpu().numpy()
    try:
        array = csr_array(matrix if issparse(matrix) else np.asarray(matrix, dtype=float), dtype=float)
    except (TypeError, ValueError) as error:
        raise InputError(f"graph: the weights are not a matrix of numbers: {error}") from error
    array.eliminate_zeros()
    if array.ndim != 2 or array.shape[0] != array.shape[1] or array.shape[0] == 0:
        raise InputError(
            f"graph: the weight matrix has shape {array.shape}; it must be square, one row a client"
        )
    return array


def _weight(value: float) -> float:
    if not 0 <= value < math.inf:
        raise InputError(f"graph: weight {value}; weights must be finite and not negative")
    return float(value)


def _check_entries(a: csr_array, names: tuple[str, ...] | None) -> None:
    def entry(where: np.ndarray, matrix: csr_array) -> str:
        entries = matrix.tocoo()
        k, l = int(entries.row[where][0]), int(entries.col[where][0])  # noqa: E741 — the paper's k and ℓ
        return f"({names[k]!r}, {names[l]!r})" if names else f"({k}, {l})"

    if (bad := ~(np.isfinite(a.data))).any():
        raise InputError(f"graph: the weight at {entry(bad, a)} is NaN or infinite; weights must be finite")
    if (bad := a.data < 0).any():
        raise InputError(
            f"graph: the weight at {entry(bad, a)} is {a.data[bad][0]:g}; weights must not be negative"
        )
    if (diagonal := a.diagonal()).any():
        k = int(np.flatnonzero(diagonal)[0])
        raise InputError(f"graph: entry ({k}, {k}) on the diagonal is {diagonal[k]:g}; it must be zero")
    difference = csr_array(abs(a - a.T))
    if (bad := difference.data > 1e-12 * max(1.0, a.data.max(initial=0.0))).any():
        at = entry(bad, difference)
        raise InputError(
            f"graph: the weights at {at} and its mirror differ by {difference.data[bad][0]:g}; "
            "make the matrix symmetric"
        )
