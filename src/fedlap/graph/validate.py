"""Validation of names, edges and weight matrices that graphs are built from."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from scipy.sparse import coo_array, csr_array, issparse
from torch import Tensor

from fedlap.errors import InputError, check_number, unknown_name_error

# Largest difference between a weight and its mirror, relative to the largest weight: float32 rounding.
SYMMETRY_TOLERANCE = 1e-6
# A sum of ten million such weights, and its products with models, are finite in float32.
LARGEST_WEIGHT = 1e30

Edge = tuple[str, str] | tuple[str, str, float]


def validate_names(clients: Iterable[str]) -> tuple[str, ...]:
    """Return the clients' names; raise InputError if there are none or one occurs twice."""
    if not isinstance(clients, Iterable):
        raise InputError(
            f"clients = {clients!r}; expected a sequence of names such as federation.clients",
            field="clients",
            scope="graph",
        )
    names = tuple(str(name) for name in clients)
    if not names:
        raise InputError("clients is empty; pass at least one name", scope="graph")
    if len(set(names)) < len(names):
        seen: set[str] = set()
        for name in names:
            if name in seen:
                raise InputError(f"client {name!r} is named twice; pass each name once", scope="graph")
            seen.add(name)
    return names


def validate_edge(edge: Edge) -> tuple[str, str, float]:
    """Return both clients of an edge and its weight, 1 by default."""
    if not isinstance(edge, Sequence) or isinstance(edge, str) or len(edge) not in (2, 3):
        raise InputError(
            f"edge {edge!r}; expected (client, client) or (client, client, weight)", scope="graph"
        )
    try:
        weight = float(edge[2]) if len(edge) == 3 else 1.0
    except (TypeError, ValueError) as error:
        raise InputError(f"edge {edge!r}; expected a number as its weight", scope="graph") from error
    if not 0 <= weight <= LARGEST_WEIGHT:
        ends = f"between {edge[0]!r} and {edge[1]!r}"
        raise InputError(
            f"the edge {ends} has weight {weight}; expected a finite number of at least zero"
            f"{_format_limit(weight)}",
            field="weight",
            scope="graph",
        )
    return str(edge[0]), str(edge[1]), weight


def _format_limit(weight: object) -> str:
    """Return the part of a message that names the largest weight, or "" if the weight does not exceed it."""
    beyond = isinstance(weight, int | float) and LARGEST_WEIGHT < weight < math.inf
    return f" and at most {LARGEST_WEIGHT:g}; divide all weights by a constant" if beyond else ""


def locate_edges(
    edges: Sequence[tuple[str, str, float]], names: tuple[str, ...]
) -> Int64[np.ndarray, "2 edge"]:
    """Return both ends of each edge as indices into `names`."""
    index = {name: place for place, name in enumerate(names)}
    both = [index.get(a, -1) for a, _, _ in edges], [index.get(b, -1) for _, b, _ in edges]
    ends = np.array(both, dtype=np.int64)
    low, high = ends.min(0), ends.max(0)
    distinct = len(np.unique(low * len(names) + high)) == len(edges)
    if not (distinct and (low >= 0).all() and (low < high).all()):
        _refuse_first_invalid(edges, index)  # a slower loop, which names the first invalid edge
    return ends


def _refuse_first_invalid(edges: Sequence[tuple[str, str, float]], index: Mapping[str, int]) -> None:
    """Raise InputError for the first edge with an unknown client, to itself, or listed before."""
    seen: set[tuple[str, str]] = set()
    for a, b, _ in edges:
        for name in (a, b):
            if name not in index:
                raise unknown_name_error("client in graph's edges", name, index)
        if a == b:
            raise InputError(f"client {a!r} is joined to itself; remove this edge", scope="graph")
        pair = (min(a, b), max(a, b))
        if pair in seen:
            raise InputError(
                f"the edge between {a!r} and {b!r} is listed twice; list each pair once", scope="graph"
            )
        seen.add(pair)


def parse_matrix(matrix: Any) -> csr_array:
    """Return a square matrix of floats in sparse form, without explicit zeros."""
    if isinstance(matrix, Tensor):
        matrix = _to_array(matrix.detach().cpu())
    try:
        matrix = matrix if issparse(matrix) else np.asarray(matrix)
        if np.iscomplexobj(matrix):
            raise TypeError("its entries are complex")
        array = csr_array(matrix.astype(float))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"the weights cannot be read ({error}); expected a matrix of real numbers", scope="graph"
        ) from error
    array.eliminate_zeros()
    if array.ndim != 2 or array.shape[0] != array.shape[1] or array.shape[0] == 0:
        raise InputError(
            f"the weight matrix has shape {array.shape}; expected a square matrix, one row per client",
            scope="graph",
        )
    return array


def _to_array(matrix: Tensor) -> Any:
    """Convert to an array; a sparse tensor stays sparse, since its zeros may not fit into memory."""
    if matrix.layout == torch.strided or matrix.dim() != 2:
        return matrix.to_dense().numpy()
    entries = matrix.to_sparse_coo().coalesce()
    return coo_array((entries.values().numpy(), tuple(entries.indices().numpy())), shape=tuple(matrix.shape))


def validate_weight(value: float) -> float:
    """Return a weight for all edges, or raise InputError."""
    weight = check_number("weight", value, zero=True, scope="graph")
    if weight > LARGEST_WEIGHT:
        raise InputError(
            f"weight = {value!r}; expected a finite number of at least zero{_format_limit(weight)}",
            field="weight",
            scope="graph",
        )
    return weight


def check_entries(a: csr_array, names: tuple[str, ...] | None) -> None:
    """Raise InputError for weights that are NaN, too large, negative, on the diagonal or not symmetric."""

    def describe_entry(where: np.ndarray, matrix: csr_array) -> str:
        entries = matrix.tocoo()
        k, l = int(entries.row[where][0]), int(entries.col[where][0])  # noqa: E741 — the paper's k and ℓ
        return f"({names[k]!r}, {names[l]!r})" if names else f"({k}, {l})"

    if (bad := ~(np.isfinite(a.data))).any():
        raise InputError(
            f"the weight at {describe_entry(bad, a)} is NaN or infinite; expected finite weights",
            scope="graph",
        )
    if (bad := a.data > LARGEST_WEIGHT).any():
        raise InputError(
            f"the weight at {describe_entry(bad, a)} is {a.data[bad][0]:g}; "
            f"expected at most {LARGEST_WEIGHT:g}: divide all weights by a constant",
            scope="graph",
        )
    if (bad := a.data < 0).any():
        raise InputError(
            f"the weight at {describe_entry(bad, a)} is {a.data[bad][0]:g}; expected zero or more",
            scope="graph",
        )
    if (diagonal := a.diagonal()).any():
        k = int(np.flatnonzero(diagonal)[0])
        raise InputError(f"entry ({k}, {k}) on the diagonal is {diagonal[k]:g}; expected zero", scope="graph")
    difference = csr_array(abs(a - a.T))
    if (bad := difference.data > SYMMETRY_TOLERANCE * a.data.max(initial=0.0)).any():
        at = describe_entry(bad, difference)
        raise InputError(
            f"the weights at {at} and its mirror differ by {difference.data[bad][0]:g}; "
            "make the matrix symmetric",
            scope="graph",
        )
