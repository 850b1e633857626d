"""Three forms of a symmetric weight matrix A, each with the cheapest way to sum over neighbours."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from scipy.sparse import csr_array
from torch import Tensor

Models = Float[Tensor, "vertex param"]
Ids = Int64[Tensor, "chosen"]
Chosen = Float[Tensor, "chosen param"]

DENSE_UP_TO = 2_000  # vertices; a larger graph is kept sparse


@runtime_checkable
class Weights(Protocol):
    """A weight matrix A with zero diagonal."""

    @property
    def size(self) -> int:
        """Number of vertices."""
        ...

    def matrix(self) -> csr_array:
        """A itself, sparse, on the host."""
        ...

    def degrees(self, like: Tensor) -> Float[Tensor, "vertex 1"]:
        """Row sums of A, where `like` is."""
        ...

    def induced(self, ids: Ids, like: Tensor) -> "Weights":
        """The weights among the vertices in `ids`, in that order, for use where `like` is."""
        ...

    def times(self, W: Models) -> Models:
        """A W: for each vertex, the weighted sum of its neighbours' models."""
        ...

    def rows_times(self, ids: Ids, W: Models) -> Chosen:
        """The rows `ids` of A W."""
        ...


@dataclass(frozen=True)
class CompleteWeights:
    """The same weight between any two vertices: a sum over neighbours is the total less one's own."""

    size: int
    weight: float

    def matrix(self) -> csr_array:
        """A itself; it has N² entries."""
        return csr_array(self.weight * (np.ones((self.size, self.size)) - np.eye(self.size)))

    def degrees(self, like: Tensor) -> Float[Tensor, "vertex 1"]:
        """(N − 1) · weight."""
        return like.new_full((self.size, 1), self.weight * (self.size - 1))

    def induced(self, ids: Ids, like: Tensor) -> "CompleteWeights":
        """A smaller complete graph."""
        return CompleteWeights(len(ids), self.weight)

    def times(self, W: Models) -> Models:
        """The total less one's own."""
        return (W.sum(0) - W) * self.weight

    def rows_times(self, ids: Ids, W: Models) -> Chosen:
        """The total less one's own."""
        return (W.sum(0) - W[ids]) * self.weight


@dataclass(frozen=True, eq=False)
class DenseWeights:
    """A small graph as a full matrix."""

    array: Float[Tensor, "vertex vertex"]
    _placed: dict[tuple[torch.device, torch.dtype], Tensor] = field(default_factory=dict, repr=False)

    @property
    def size(self) -> int:
        """Number of vertices."""
        return len(self.array)

    def matrix(self) -> csr_array:
        """A itself."""
        return csr_array(self.array.cpu().numpy())

    def degrees(self, like: Tensor) -> Float[Tensor, "vertex 1"]:
        """Row sums of A."""
        return self._like(like).sum(1, keepdim=True)

    def induced(self, ids: Ids, like: Tensor) -> "DenseWeights":
        """Some rows and the same columns."""
        return DenseWeights(self._like(like)[ids][:, ids])

    def times(self, W: Models) -> Models:
        """A W."""
        return self._like(W) @ W

    def rows_times(self, ids: Ids, W: Models) -> Chosen:
        """Some rows of A, times W."""
        return self._like(W)[ids] @ W

    def _like(self, w: Tensor) -> Tensor:
        """A where w is. The array never changes, so a copy once placed stays right."""
        place = (w.device, w.dtype)
        if place not in self._placed:
            self._placed[place] = self.array.to(w)
        return self._placed[place]


@dataclass(frozen=True, eq=False)
class SparseWeights:
    """A large graph; only the rows asked for are touched."""

    csr: csr_array
    _placed: dict[tuple[torch.device, torch.dtype], Tensor] = field(default_factory=dict, repr=False)

    @property
    def size(self) -> int:
        """Number of vertices."""
        return int(self.csr.shape[0])

    @cached_property
    def _row_sums(self) -> Float64[np.ndarray, "vertex"]:
        return np.asarray(self.csr.sum(axis=1)).ravel()

    def matrix(self) -> csr_array:
        """A itself."""
        return self.csr

    def degrees(self, like: Tensor) -> Float[Tensor, "vertex 1"]:
        """Row sums of A."""
        return torch.from_numpy(self._row_sums).unsqueeze(1).to(like)

    def induced(self, ids: Ids, like: Tensor) -> "SparseWeights":
        """Some rows and the same columns."""
        at = ids.cpu().numpy()
        return SparseWeights(csr_array(self.csr[at][:, at]))

    def times(self, W: Models) -> Models:
        """A W."""
        place = (W.device, W.dtype)
        if place not in self._placed:  # as above: a copy once placed stays right
            self._placed[place] = _sparse_tensor(self.csr, W)
        return self._placed[place] @ W

    def rows_times(self, ids: Ids, W: Models) -> Chosen:
        """Some rows of A, times the rows of W that they name."""
        rows = csr_array(self.csr[ids.cpu().numpy()])
        near, column = np.unique(rows.indices, return_inverse=True)
        small = csr_array((rows.data, column, rows.indptr), shape=(len(ids), len(near)))
        return _sparse_tensor(small, W) @ W[torch.from_numpy(near).to(W.device, torch.int64)]


def _sparse_tensor(a: csr_array, w: Tensor) -> Tensor:
    entries = a.tocoo()
    at = torch.from_numpy(np.stack([entries.row, entries.col]).astype(np.int64))
    values = torch.from_numpy(entries.data).to(w.dtype)
    placed = torch.sparse_coo_tensor(at, values, a.shape, check_invariants=False, is_coalesced=True)
    return placed.to(w.device)


def weights(csr: csr_array) -> Weights:
    """The form that fits the size."""
    csr.eliminate_zeros()
    small = csr.shape[0] <= DENSE_UP_TO
    return DenseWeights(torch.from_numpy(csr.toarray())) if small else SparseWeights(csr)
