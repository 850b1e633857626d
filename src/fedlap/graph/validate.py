"""What a graph can be made from, checked."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from scipy.sparse import coo_array, csr_array, issparse
from torch import Tensor

from fedlap.errors import InputError, unknown

# What weights kept in single precision may differ by across the diagonal, of the largest one.
ROUNDING = 1e-6
# The largest weight: the sum of ten million of them, and its products with models, are finite in float32.
MOST_WEIGHT = 1e30

Edge = tuple[str, str] | tuple[str, str, float]


def checked_names(clients: Iterable[str]) -> tuple[str, ...]:
    """Clients' names, each once."""
    if not isinstance(clients, Iterable):
        raise InputError(
            f"clients = {clients!r}; give their names, as in federation.clients",
            field="clients",
            scope="graph",
        )
    names = tuple(str(name) for name in clients)
    if not names:
        raise InputError("it has no clients; give their names", scope="graph")
    if len(set(names)) < len(names):
        seen: set[str] = set()
        for name in names:
            if name in seen:
                raise InputError(f"client {name!r} is named twice", scope="graph")
            seen.add(name)
    return names


def checked_edge(edge: Edge) -> tuple[str, str, float]:
    """Two clients and the weight between them, 1 where none is given."""
    if not isinstance(edge, Sequence) or isinstance(edge, str) or len(edge) not in (2, 3):
        raise InputError(
            f"the edge {edge!r} is not (client, client) or (client, client, weight)", scope="graph"
        )
    try:
        weight = float(edge[2]) if len(edge) == 3 else 1.0
    except (TypeError, ValueError) as error:
        raise InputError(f"the edge {edge!r} has a weight that is not a number", scope="graph") from error
    if not 0 <= weight <= MOST_WEIGHT:
        ends = f"between {edge[0]!r} and {edge[1]!r}"
        raise InputError(
            f"the edge {ends} has weight {weight}; weights must be finite and not negative{_bound(weight)}",
            field="weight",
            scope="graph",
        )
    return str(edge[0]), str(edge[1]), weight


def _bound(weight: object) -> str:
    """The largest weight, where it is that which a number exceeds."""
    beyond = isinstance(weight, int | float) and MOST_WEIGHT < weight < math.inf
    return f", at most {MOST_WEIGHT:g}; divide all of them by one number" if beyond else ""


def places_of(edges: Sequence[tuple[str, str, float]], names: tuple[str, ...]) -> Int64[np.ndarray, "2 edge"]:
    """The two ends of each edge as places among `names`."""
    at = {name: place for place, name in enumerate(names)}
    both = [at.get(a, -1) for a, _, _ in edges], [at.get(b, -1) for _, b, _ in edges]
    ends = np.array(both, dtype=np.int64)
    low, high = ends.min(0), ends.max(0)
    once = len(np.unique(low * len(names) + high)) == len(edges)
    if not (once and (low >= 0).all() and (low < high).all()):
        _check_edges(edges, at)  # one after another, to name the first that is wrong
    return ends


def _check_edges(edges: Sequence[tuple[str, str, float]], at: Mapping[str, int]) -> None:
    """Refuse an edge of a stranger, to oneself, or given before."""
    seen: set[tuple[str, str]] = set()
    for a, b, _ in edges:
        for name in (a, b):
            if name not in at:
                raise unknown("client in graph's edges", name, at)
        if a == b:
            raise InputError(f"client {a!r} is joined to itself; leave such edges out", scope="graph")
        pair = (min(a, b), max(a, b))
        if pair in seen:
            raise InputError(
                f"the edge between {a!r} and {b!r} is given twice; give each pair once", scope="graph"
            )
        seen.add(pair)


def checked_square(matrix: Any) -> csr_array:
    """The matrix in sparse form, without explicit zeros."""
    if isinstance(matrix, Tensor):
        matrix = _of_tensor(matrix.detach().cpu())
    try:
        matrix = matrix if issparse(matrix) else np.asarray(matrix)
        if np.iscomplexobj(matrix):
            raise TypeError("they are complex")
        array = csr_array(matrix.astype(float))
    except (TypeError, ValueError) as error:
        raise InputError(f"the weights are not a matrix of numbers: {error}", scope="graph") from error
    array.eliminate_zeros()
    if array.ndim != 2 or array.shape[0] != array.shape[1] or array.shape[0] == 0:
        raise InputError(
            f"the weight matrix has shape {array.shape}; it must be square, one row a client", scope="graph"
        )
    return array


def _of_tensor(matrix: Tensor) -> Any:
    """An array; a sparse one of a sparse tensor, which may have far more zeros than fit into memory."""
    if matrix.layout == torch.strided or matrix.dim() != 2:
        return matrix.to_dense().numpy()
    entries = matrix.to_sparse_coo().coalesce()
    return coo_array((entries.values().numpy(), tuple(entries.indices().numpy())), shape=tuple(matrix.shape))


def checked_weight(value: float) -> float:
    """A weight for all edges."""
    if not isinstance(value, int | float) or not 0 <= value <= MOST_WEIGHT:
        raise InputError(
            f"weight {value!r}; weights must be finite and not negative{_bound(value)}",
            field="weight",
            scope="graph",
        )
    return float(value)


def check_entries(a: csr_array, names: tuple[str, ...] | None) -> None:
    """Refuse weights that are not finite, negative, on the diagonal, or not symmetric."""

    def entry(where: np.ndarray, matrix: csr_array) -> str:
        entries = matrix.tocoo()
        k, l = int(entries.row[where][0]), int(entries.col[where][0])  # noqa: E741 — the paper's k and ℓ
        return f"({names[k]!r}, {names[l]!r})" if names else f"({k}, {l})"

    if (bad := ~(np.isfinite(a.data))).any():
        raise InputError(
            f"the weight at {entry(bad, a)} is NaN or infinite; weights must be finite", scope="graph"
        )
    if (bad := a.data > MOST_WEIGHT).any():
        raise InputError(
            f"the weight at {entry(bad, a)} is {a.data[bad][0]:g}; weights must be at most "
            f"{MOST_WEIGHT:g}, divide all of them by one number",
            scope="graph",
        )
    if (bad := a.data < 0).any():
        raise InputError(
            f"the weight at {entry(bad, a)} is {a.data[bad][0]:g}; weights must not be negative",
            scope="graph",
        )
    if (diagonal := a.diagonal()).any():
        k = int(np.flatnonzero(diagonal)[0])
        raise InputError(
            f"entry ({k}, {k}) on the diagonal is {diagonal[k]:g}; it must be zero", scope="graph"
        )
    difference = csr_array(abs(a - a.T))
    if (bad := difference.data > ROUNDING * a.data.max(initial=0.0)).any():
        at = entry(bad, difference)
        raise InputError(
            f"the weights at {at} and its mirror differ by {difference.data[bad][0]:g}; "
            "make the matrix symmetric",
            scope="graph",
        )
