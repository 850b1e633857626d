"""The weights of a large graph: each vertex's neighbours in a list."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from scipy.sparse import csr_array
from torch import Tensor
from torch.nn.functional import embedding_bag

Models = Float[Tensor, "vertex param"]
Ids = Int64[Tensor, "chosen"]
Chosen = Float[Tensor, "chosen param"]
Degrees = Float[Tensor, "chosen 1"]
Neighbours = tuple[Int64[np.ndarray, "near"], Float64[np.ndarray, "near"]]

PIECE = 128  # neighbours that are summed one after another


class Lists(NamedTuple):
    """Every vertex's neighbours, one vertex after another, on a device."""

    first: Int64[Tensor, "ends"]  # where each vertex's begin; last, how many there are
    column: Int64[Tensor, "entry"]  # the neighbours
    value: Float[Tensor, "entry"]  # their weights
    degree: Float[Tensor, "vertex 1"]  # sums of these


@dataclass(frozen=True, eq=False)
class SparseWeights:
    """A large graph; only the rows asked for are touched.

    Sums run over each vertex's neighbours in order, so they are the same numbers every time, and on a GPU
    nothing waits for the host.
    """

    csr: csr_array
    _placed: dict[tuple[torch.device, torch.dtype], Lists] = field(default_factory=dict, repr=False)

    @property
    def size(self) -> int:
        """Number of vertices."""
        return int(self.csr.shape[0])

    @property
    def edges(self) -> int:
        """Number of joined pairs."""
        return int(np.count_nonzero(self.csr.data)) // 2

    @cached_property
    def _bounds(self) -> tuple[Int64[np.ndarray, "vertex"], Int64[np.ndarray, "vertex"]]:
        """How many neighbours any 1, 2, … vertices have at least and at most."""
        counts = np.sort(np.diff(self.csr.indptr).astype(np.int64))
        return counts.cumsum(), counts[::-1].cumsum()

    def matrix(self) -> csr_array:
        """A itself."""
        return self.csr

    def row(self, place: int) -> Neighbours:
        """A piece of the lists."""
        own = slice(self.csr.indptr[place], self.csr.indptr[place + 1])
        joined = self.csr.data[own] != 0
        return self.csr.indices[own][joined].astype(np.int64), self.csr.data[own][joined]

    def degrees(self, like: Tensor) -> Float[Tensor, "vertex 1"]:
        """Row sums of A."""
        return self._like(like).degree

    def times(self, W: Models) -> Models:
        """A W."""
        lists = self._like(W)
        longest = int(self._bounds[1][0])
        return _sums(W, lists.column, lists.value, lists.first[:-1], longest)

    def near(self, ids: Ids, w: Chosen, elsewhere: Models | None) -> tuple[Degrees, Chosen]:
        """One pass over the lists of `ids`."""
        lists, chosen = self._like(w), len(ids)
        if chosen == self.size:
            W = torch.empty_like(w).index_copy_(0, ids, w)
            return lists.degree[ids], self.times(W)[ids]
        least, most = (int(bound[chosen - 1]) for bound in self._bounds)
        longest = max(int(self._bounds[1][0]), most - least)
        line, at, real = _entries(lists, ids, most)
        column, value = lists.column[at], lists.value[at]
        ordered, order = ids.sort()
        place = torch.searchsorted(ordered, column).clamp_(max=chosen - 1)
        inside = real & (ordered[place] == column)

        same = line, value, longest
        among = _some(w, order[place], inside, torch.arange(chosen, device=ids.device), *same)
        if elsewhere is None:
            ones = w.new_ones(1, 1)
            return _some(ones, torch.zeros_like(line), inside, torch.zeros_like(ids), *same), among
        return lists.degree[ids], among + _some(elsewhere, column, real & ~inside, ids, *same)

    def _like(self, w: Tensor) -> Lists:
        """The lists where w is. The graph never changes, so a copy once placed stays right."""
        place = (w.device, w.dtype)
        if place not in self._placed:
            first, column, value, degree = (
                torch.from_numpy(part)
                for part in (
                    self.csr.indptr.astype(np.int64),
                    self.csr.indices.astype(np.int64),
                    self.csr.data,
                    np.asarray(self.csr.sum(axis=1)).reshape(-1, 1),
                )
            )
            placed = Lists(first.to(w.device), column.to(w.device), value.to(w), degree.to(w))
            self._placed[place] = placed
        return self._placed[place]


def _entries(
    lists: Lists, ids: Ids, most: int
) -> tuple[Int64[Tensor, "entry"], Int64[Tensor, "entry"], Bool[Tensor, "entry"]]:
    """Which of `ids` each entry of their lists belongs to, its place, and whether it is an entry at all.

    How many there are depends on `ids`. To ask a GPU would be to wait for it, so as many are made there as
    there can be, and the last ones are for nothing.
    """
    first = lists.first[ids]
    count = lists.first[ids + 1] - first
    ends = count.cumsum(0)
    entry = torch.arange(int(ends[-1]) if ids.device.type == "cpu" else most, device=ids.device)
    line = torch.searchsorted(ends, entry, right=True).clamp_(max=len(ids) - 1)
    real = entry < ends[-1]
    return line, torch.where(real, (first - (ends - count))[line] + entry, 0), real


def _sums(
    models: Float[Tensor, "some param"],
    at: Int64[Tensor, "entry"],
    value: Float[Tensor, "entry"],
    first: Int64[Tensor, "line"],
    longest: int,
) -> Float[Tensor, "line param"]:
    """The weighted sums of the models that each line of entries names; `first` says where lines begin.

    Where a line can be long it is summed in pieces: few of a GPU's threads work on each, and rounding errors
    grow with its length.
    """
    sums: Tensor
    if longest <= PIECE:
        sums = embedding_bag(at, models, first, mode="sum", per_sample_weights=value)
        return sums
    cuts = torch.cat([first, torch.arange(0, len(at), PIECE, device=at.device)]).sort().values
    pieces = embedding_bag(at, models, cuts, mode="sum", per_sample_weights=value)
    every = torch.arange(len(cuts), device=at.device)
    sums = embedding_bag(every, pieces, torch.searchsorted(cuts, first), mode="sum")
    return sums


def _some(
    models: Float[Tensor, "some param"],
    at: Int64[Tensor, "entry"],
    keep: Bool[Tensor, "entry"],
    own: Int64[Tensor, "line"],
    line: Int64[Tensor, "entry"],
    value: Float[Tensor, "entry"],
    longest: int,
) -> Float[Tensor, "line param"]:
    """The same over some of the entries.

    On a GPU, where it would wait to know how many, the others add nothing: each line's own model, times zero.
    """
    if models.device.type == "cpu":
        line, at, value = line[keep], at[keep], value[keep]
    else:
        at, value = torch.where(keep, at, own[line]), torch.where(keep, value, 0)
    first = torch.searchsorted(line, torch.arange(len(own), device=line.device))
    return _sums(models, at, value, first, longest)
