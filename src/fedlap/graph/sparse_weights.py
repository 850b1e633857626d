"""The weights of a large graph: a list of neighbours per vertex."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from scipy.sparse import csr_array
from torch import Tensor
from torch.nn.functional import embedding_bag

from fedlap.summaries import summarise_fields

AllModels = Float[Tensor, "vertex param"]
VertexIds = Int64[Tensor, "chosen"]
ChosenModels = Float[Tensor, "chosen param"]
Degrees = Float[Tensor, "chosen 1"]
Neighbours = tuple[Int64[np.ndarray, "near"], Float64[np.ndarray, "near"]]

PIECE_LENGTH = 128  # neighbours that are summed one after another


class NeighbourLists(NamedTuple):
    """The neighbours of all vertices on a device, in the order of the vertices."""

    first: Int64[Tensor, "ends"]  # the first entry of each vertex, and the number of entries
    column: Int64[Tensor, "entry"]  # the neighbours
    value: Float[Tensor, "entry"]  # their weights
    degree: Float[Tensor, "vertex 1"]  # the sum of weights per vertex


@dataclass(frozen=True, eq=False)
class SparseWeights:
    """The weights of a large graph; only requested rows are read.

    Sums run over each vertex's neighbours in order, so they are reproducible, and on a GPU nothing waits for
    the host.
    """

    csr: csr_array
    _copies: dict[tuple[torch.device, torch.dtype], NeighbourLists] = field(default_factory=dict, repr=False)

    __repr__ = summarise_fields

    @property
    def size(self) -> int:
        """Number of vertices."""
        return int(self.csr.shape[0])

    @property
    def edges(self) -> int:
        """Number of edges."""
        return int(np.count_nonzero(self.csr.data)) // 2

    @cached_property
    def _bounds(self) -> tuple[Int64[np.ndarray, "vertex"], Int64[np.ndarray, "vertex"]]:
        """The smallest and largest total number of neighbours of any 1, 2, … vertices."""
        counts = np.sort(np.diff(self.csr.indptr).astype(np.int64))
        return counts.cumsum(), counts[::-1].cumsum()

    def matrix(self) -> csr_array:
        """Return A."""
        return self.csr

    def neighbours(self, place: int) -> Neighbours:
        """Return indices and weights of one vertex's neighbours, on the host."""
        entries = slice(self.csr.indptr[place], self.csr.indptr[place + 1])
        nonzero = self.csr.data[entries] != 0
        return self.csr.indices[entries][nonzero].astype(np.int64), self.csr.data[entries][nonzero]

    def degrees(self, like: Tensor) -> Float[Tensor, "vertex 1"]:
        """Return the row sums of A on the device of `like`."""
        return self._copy_like(like).degree

    def multiply(self, W: AllModels) -> AllModels:
        """Return A W."""
        lists = self._copy_like(W)
        longest = int(self._bounds[1][0])
        return _sum_lines(W, lists.column, lists.value, lists.first[:-1], longest)

    def sum_neighbours(
        self, ids: VertexIds, w: ChosenModels, others: AllModels | None
    ) -> tuple[Degrees, ChosenModels]:
        """Sum weights and weighted models of neighbours, in one pass over the lists of `ids`."""
        lists, chosen = self._copy_like(w), len(ids)
        if chosen == self.size:
            W = torch.empty_like(w).index_copy_(0, ids, w)
            return lists.degree[ids], self.multiply(W)[ids]
        least, most = (int(bound[chosen - 1]) for bound in self._bounds)
        longest = max(int(self._bounds[1][0]), most - least)
        line, position, real = _list_entries(lists, ids, most)
        column, value = lists.column[position], lists.value[position]
        ordered, order = ids.sort()
        place = torch.searchsorted(ordered, column).clamp_(max=chosen - 1)
        inside = real & (ordered[place] == column)

        shared = line, value, longest
        sums = _sum_masked_lines(w, order[place], inside, torch.arange(chosen, device=ids.device), *shared)
        if others is None:
            ones = w.new_ones(1, 1)
            return _sum_masked_lines(
                ones, torch.zeros_like(line), inside, torch.zeros_like(ids), *shared
            ), sums
        return lists.degree[ids], sums + _sum_masked_lines(others, column, real & ~inside, ids, *shared)

    def _copy_like(self, w: Tensor) -> NeighbourLists:
        """Return the lists on w's device in its precision; the graph never changes, so copies are cached."""
        key = (w.device, w.dtype)
        if key not in self._copies:
            first, column, value, degree = (
                torch.from_numpy(part)
                for part in (
                    self.csr.indptr.astype(np.int64),
                    self.csr.indices.astype(np.int64),
                    self.csr.data,
                    np.asarray(self.csr.sum(axis=1)).reshape(-1, 1),
                )
            )
            lists = NeighbourLists(first.to(w.device), column.to(w.device), value.to(w), degree.to(w))
            self._copies[key] = lists
        return self._copies[key]


def _list_entries(
    lists: NeighbourLists, ids: VertexIds, most: int
) -> tuple[Int64[Tensor, "entry"], Int64[Tensor, "entry"], Bool[Tensor, "entry"]]:
    """Return per entry of the lists of `ids`: position in `ids`, index in the lists, False for padding.

    The number of entries depends on `ids`. Reading it from a GPU would wait for it, so there the result is
    padded to `most` entries, the largest possible number.
    """
    first = lists.first[ids]
    count = lists.first[ids + 1] - first
    ends = count.cumsum(0)
    entry = torch.arange(int(ends[-1]) if ids.device.type == "cpu" else most, device=ids.device)
    line = torch.searchsorted(ends, entry, right=True).clamp_(max=len(ids) - 1)
    real = entry < ends[-1]
    return line, torch.where(real, (first - (ends - count))[line] + entry, 0), real


def _sum_lines(
    models: Float[Tensor, "model param"],
    entries: Int64[Tensor, "entry"],
    value: Float[Tensor, "entry"],
    first: Int64[Tensor, "line"],
    longest: int,
) -> Float[Tensor, "line param"]:
    """Return the weighted sum of models per line of entries; `first` is the first entry of each line.

    Long lines are summed in pieces, since a GPU uses few threads per line and rounding errors grow with its
    length.
    """
    sums: Tensor
    if longest <= PIECE_LENGTH:
        sums = embedding_bag(entries, models, first, mode="sum", per_sample_weights=value)
        return sums
    cuts = (
        torch.cat([first, torch.arange(0, len(entries), PIECE_LENGTH, device=entries.device)]).sort().values
    )
    pieces = embedding_bag(entries, models, cuts, mode="sum", per_sample_weights=value)
    order = torch.arange(len(cuts), device=entries.device)
    sums = embedding_bag(order, pieces, torch.searchsorted(cuts, first), mode="sum")
    return sums


def _sum_masked_lines(
    models: Float[Tensor, "model param"],
    entries: Int64[Tensor, "entry"],
    mask: Bool[Tensor, "entry"],
    fallback: Int64[Tensor, "line"],
    line: Int64[Tensor, "entry"],
    value: Float[Tensor, "entry"],
    longest: int,
) -> Float[Tensor, "line param"]:
    """Return the weighted sum of models per line over the entries in the mask.

    On a GPU, where counting these entries would wait, every other entry adds the line's `fallback` model
    times zero.
    """
    if models.device.type == "cpu":
        line, entries, value = line[mask], entries[mask], value[mask]
    else:
        entries, value = torch.where(mask, entries, fallback[line]), torch.where(mask, value, 0)
    first = torch.searchsorted(line, torch.arange(len(fallback), device=line.device))
    return _sum_lines(models, entries, value, first, longest)
