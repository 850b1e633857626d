"""Sparse factorisation of symmetric matrices with positive pivots, for many right-hand sides at once."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from scipy.sparse import csc_array, csr_array
from scipy.sparse.csgraph import reverse_cuthill_mckee
from scipy.sparse.linalg import SuperLU, splu
from torch import Tensor
from torch.nn.functional import embedding_bag

LEAST_LEVEL = 8  # rows; below, a level takes longer to start than to compute
MOST_DENSE = 1_500  # rows of the last, dense block

RightHandSides = Float[Tensor, "row param"]


@dataclass(frozen=True, eq=False)
class SparseRows:
    """A sparse matrix on the host, whose products with many columns are sums of rows."""

    first: Int64[Tensor, "row"]
    column: Int64[Tensor, "entry"]
    value: Float64[Tensor, "entry"]

    @staticmethod
    def of(matrix: csr_array) -> "SparseRows":
        """Convert a matrix."""
        return SparseRows(
            torch.from_numpy(matrix.indptr[:-1].astype(np.int64)),
            torch.from_numpy(matrix.indices.astype(np.int64)),
            torch.from_numpy(matrix.data),
        )

    def multiply(
        self, x: RightHandSides, begin: int = 0, end: int | None = None
    ) -> Float[Tensor, "found param"]:
        """Return the rows from `begin` to `end` of the product with x."""
        end = len(self.first) if end is None else end
        low = int(self.first[begin]) if begin < len(self.first) else len(self.column)
        high = int(self.first[end]) if end < len(self.first) else len(self.column)
        weights = self.value[low:high].to(x)
        product: Tensor = embedding_bag(
            self.column[low:high], x, self.first[begin:end] - low, mode="sum", per_sample_weights=weights
        )
        return product


@dataclass(frozen=True, eq=False)
class SparseFactor:
    """The factors of a matrix M = LDLᵀ, in an order in which rows of one level do not depend on each other.

    The last rows, from the last end of `levels` on, are one dense block. order: the row of M at each place.
    pivots: D. lower: L, below its diagonal, as D⁻¹LD, and without the block. upper: Lᵀ. block: L's.
    """

    order: Int64[Tensor, "row"]
    levels: tuple[int, ...]
    pivots: Float64[Tensor, "row"]
    lower: SparseRows
    upper: SparseRows
    block: Float64[Tensor, "dense dense"]

    @staticmethod
    def of(matrix: csc_array) -> "SparseFactor":
        """Factorise a matrix."""
        lu = factorise(matrix)
        L, pivots = lu.L.tocoo(), lu.U.diagonal()
        below = L.row > L.col
        row, col, value = L.row[below], L.col[below], L.data[below]
        places, ends = order_by_levels(csc_array((value, (row, col)), L.shape))
        place = np.empty_like(places)
        place[places] = np.arange(len(places))
        order = np.empty_like(places)
        order[place[lu.perm_c]] = np.arange(len(places))
        row, col, pivots = place[row], place[col], pivots[places]
        inside = col >= ends[-1]
        block = np.zeros((len(places) - ends[-1],) * 2)
        block[row[inside] - ends[-1], col[inside] - ends[-1]] = value[inside]
        row, col, value = row[~inside], col[~inside], value[~inside]
        scaled = value * pivots[col] / pivots[row]
        return SparseFactor(
            torch.from_numpy(order),
            tuple(ends),
            torch.from_numpy(pivots),
            SparseRows.of(csr_array((scaled, (row, col)), L.shape)),
            SparseRows.of(csr_array((value, (col, row)), L.shape)),
            torch.from_numpy(block),
        )

    def solve(self, b: csr_array, x: Float[Tensor, "known param"]) -> RightHandSides:
        """Return M⁻¹ B X in the order of `order`, for a sparse matrix B with the rows of M."""
        order, top = self.order.numpy(), self.levels[-1]
        y = SparseRows.of(csr_array(b[order] / self.pivots.numpy()[:, None])).multiply(x)  # D⁻¹BX
        spans = list(pairwise(self.levels))
        for begin, end in spans[1:]:
            y[begin:end] -= self.lower.multiply(y, begin, end)
        if top < len(y):
            y[top:] -= self.lower.multiply(y, top)
            pivots, block = self.pivots[top:], self.block
            scaled = (block * pivots / pivots.unsqueeze(1)).to(y)
            last = torch.linalg.solve_triangular(scaled, y[top:], upper=False, unitriangular=True)
            y[top:] = torch.linalg.solve_triangular(block.mT.to(y), last, upper=True, unitriangular=True)
        for begin, end in reversed(spans):
            y[begin:end] -= self.upper.multiply(y, begin, end)
        return y


def factorise(matrix: csc_array) -> SuperLU:
    """Return LU = M with M's rows in an order of few entries; U is DLᵀ for a symmetric M."""
    return splu(matrix, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})


def order_by_levels(lower: csc_array) -> tuple[Int64[np.ndarray, "row"], list[int]]:
    """Return the rows of a strictly lower triangular matrix by level, and where each level begins and ends.

    Rows of a level depend on those of earlier levels only. Once levels have few rows, all others follow, in
    their order.
    """
    missing = np.bincount(lower.indices, minlength=lower.shape[0])
    level = np.flatnonzero(missing == 0)
    levels, ends = [], [0]
    while len(level) and (len(level) >= LEAST_LEVEL or lower.shape[0] - ends[-1] > MOST_DENSE):
        levels.append(level)
        ends.append(ends[-1] + len(level))
        missing[level] = -1
        begin, end = lower.indptr[level], lower.indptr[level + 1]
        counts = end - begin
        shift = np.repeat(begin - counts.cumsum() + counts, counts)
        rows, found = np.unique(lower.indices[np.arange(len(shift)) + shift], return_counts=True)
        missing[rows] -= found
        level = rows[missing[rows] == 0]
    rest = np.flatnonzero(missing >= 0)
    return np.concatenate([*levels, rest]), ends


def compute_inverse_diagonal(lu: SuperLU) -> Float64[np.ndarray, "row"]:
    """Return the diagonal of M⁻¹ from the entries of M⁻¹ where L has entries (Takahashi et al. 1973).

    Column j of M⁻¹ = D⁻¹L⁻¹ + (I − Lᵀ)M⁻¹ has, at the rows r below j where L has entries l, the values
    z = −(M⁻¹)_rr l, and 1/D_j − lᵀz on the diagonal.
    """
    L, pivots, size = csc_array(lu.L), lu.U.diagonal(), lu.shape[0]
    columns: list[np.ndarray] = []  # the places of L's entries from the diagonal on
    children = np.zeros(size, np.int64)
    inherited: list[list[np.ndarray]] = [[] for _ in range(size)]
    for j in range(size):
        entries = L.indices[L.indptr[j] : L.indptr[j + 1]]
        rows = np.unique(np.concatenate([entries, *inherited[j], [j]]))
        inherited[j] = []
        columns.append(rows)
        if len(rows) > 1:
            inherited[rows[1]].append(rows[1:])
            children[rows[1]] += 1
    diagonal = np.empty(size)
    blocks: dict[int, np.ndarray] = {}  # of M⁻¹, while children need them
    values = np.zeros(size)
    for j in reversed(range(size)):
        rows = columns[j][1:]
        span = slice(L.indptr[j], L.indptr[j + 1])
        values[columns[j]] = 0.0
        values[L.indices[span]] = L.data[span]
        inverse = np.empty((len(rows) + 1,) * 2)
        if len(rows):
            parent = rows[0]
            place = np.searchsorted(columns[parent], rows)
            inverse[1:, 1:] = blocks[parent][np.ix_(place, place)]
            children[parent] -= 1
            if not children[parent]:
                del blocks[parent]
            inverse[1:, 0] = inverse[0, 1:] = -inverse[1:, 1:] @ values[rows]
        inverse[0, 0] = diagonal[j] = 1 / pivots[j] - values[rows] @ inverse[1:, 0]
        if children[j]:
            blocks[j] = inverse
    return np.asarray(diagonal[lu.perm_c])


def bound_entries(matrix: csr_array) -> int:
    """Return the number of entries of a factor in the order of Cuthill and McKee, without factorising."""
    order = reverse_cuthill_mckee(matrix, symmetric_mode=True)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    edges = matrix.tocoo()
    first = np.arange(len(order))
    np.minimum.at(first, place[edges.row], place[edges.col])
    return int((np.arange(len(order)) - first).sum())
