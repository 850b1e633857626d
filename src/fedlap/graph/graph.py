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

# What weights kept in single precision may differ by across the diagonal, of the largest one.
ROUNDING = 1e-6
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
        made = cls.from_edges([(a, b, weight) for a, b in pairwise(names)], names)
        return made._with_rho(weight * (2 - 2 * math.cos(math.pi * (made.size - 1) / made.size)))

    @classmethod
    def ring(cls, clients: Sequence[str], weight: float = 1.0) -> "Graph":
        """A path whose ends are joined (two clients have one edge)."""
        names = _names(clients)
        ends = [(names[-1], names[0], weight)] if len(names) > 2 else []
        made = cls.from_edges([(a, b, weight) for a, b in pairwise(names)] + ends, names)
        if made.size < 3:
            return made
        return made._with_rho(weight * (2 - 2 * math.cos(2 * math.pi * (made.size // 2) / made.size)))

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
        # What all models share adds nothing; without it, in double precision, small differences count.
        apart = W.double() - W.double().mean(0)
        return (apart * self.laplacian_times(apart)).sum()

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
            return Graph(wanted, self.weights, self.server)._with_rho(self.rho)
        if self.clients == wanted:
            return self
        for missing in sorted(set(wanted) - set(self.clients)):
            raise InputError(
                f"graph: client {missing!r} of the data is not in the graph; both need the same names"
            )
        for extra in sorted(set(self.clients) - set(wanted)):
            raise InputError(f"graph: {extra!r} is not a client of the data; both need the same names")
        if isinstance(self.weights, CompleteWeights):
            return Graph(wanted, self.weights, self.server)
        at = {name: place for place, name in enumerate((*self.clients, SERVER))}
        places = [at[name] for name in (*wanted, *([SERVER] if self.server else []))]
        made = Graph(wanted, weights(csr_array(self._sparse[places][:, places])), self.server)
        return made._with_rho(self.rho)  # the order of clients does not change it


def _names(clients: Iterable[str]) -> tuple[str, ...]:
    if not isinstance(clients, Iterable):
        raise InputError(f"graph: clients = {clients!r}; give their names, as in federation.clients")
    names = tuple(str(name) for name in clients)
    if not names:
        raise InputError("graph: it has no clients; give their names")
    if len(set(names)) < len(names):
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise InputError(f"graph: client {twice!r} is named twice")
    return names


def _edge(edge: Edge) -> tuple[str, str, float]:
    if not isinstance(edge, Sequence) or isinstance(edge, str) or len(edge) not in (2, 3):
        raise InputError(f"graph: the edge {edge!r} is not (client, client) or (client, client, weight)")
    try:
        weight = float(edge[2]) if len(edge) == 3 else 1.0
    except (TypeError, ValueError) as error:
        raise InputError(f"graph: the edge {edge!r} has a weight that is not a number") from error
    if not 0 <= weight < math.inf:
        ends = f"between {edge[0]!r} and {edge[1]!r}"
        raise InputError(
            f"graph: the edge {ends} has weight {weight}; weights must be finite and not negative"
        )
    return str(edge[0]), str(edge[1]), weight


def _square(matrix: Any) -> csr_array:
    """The matrix in sparse form, without explicit zeros."""
    if isinstance(matrix, Tensor):
        matrix = matrix.detach().to_dense().cpu().numpy()
    try:
        matrix = matrix if issparse(matrix) else np.asarray(matrix)
        if np.iscomplexobj(matrix):
            raise TypeError("they are complex")
        array = csr_array(matrix.astype(float))
    except (TypeError, ValueError) as error:
        raise InputError(f"graph: the weights are not a matrix of numbers: {error}") from error
    array.eliminate_zeros()
    if array.ndim != 2 or array.shape[0] != array.shape[1] or array.shape[0] == 0:
        raise InputError(
            f"graph: the weight matrix has shape {array.shape}; it must be square, one row a client"
        )
    return array


def _weight(value: float) -> float:
    if not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise InputError(f"graph: weight {value!r}; weights must be finite and not negative")
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
    if (bad := difference.data > ROUNDING * a.data.max(initial=0.0)).any():
        at = entry(bad, difference)
        raise InputError(
            f"graph: the weights at {at} and its mirror differ by {difference.data[bad][0]:g}; "
            "make the matrix symmetric"
        )
