"""Three forms of a symmetric weight matrix A, each with the cheapest sum over neighbours."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from scipy.sparse import csr_array
from torch import Tensor

from fedlap.graph.sparse_weights import (
    AllModels,
    ChosenModels,
    Degrees,
    Neighbours,
    SparseWeights,
    VertexIds,
)
from fedlap.summaries import summarise_fields

DENSE_UP_TO = 2_000  # vertices; larger graphs are stored sparse
LISTS_FROM = 500  # vertices; of larger graphs, a CPU sums faster along lists of neighbours …
LISTS_SHARE = 1 / 40  # … if at most this share of A's entries is not zero


@runtime_checkable
class Weights(Protocol):
    """A weight matrix A with zero diagonal."""

    @property
    def size(self) -> int:
        """Number of vertices."""
        ...

    @property
    def edges(self) -> int:
        """Number of joined pairs."""
        ...

    def matrix(self) -> csr_array:
        """Return A as a sparse matrix on the host."""
        ...

    def neighbours(self, place: int) -> Neighbours:
        """Return indices and weights of one vertex's neighbours, on the host."""
        ...

    def degrees(self, like: Tensor) -> Float[Tensor, "vertex 1"]:
        """Return the row sums of A on the device of `like`."""
        ...

    def multiply(self, W: AllModels) -> AllModels:
        """Return A W: for each vertex, the weighted sum of its neighbours' models."""
        ...

    def sum_neighbours(
        self, ids: VertexIds, w: ChosenModels, others: AllModels | None
    ) -> tuple[Degrees, ChosenModels]:
        """Return, for each vertex in `ids`, the sum of its neighbours' weights and of their weighted models.

        The models of `ids` are the rows of `w`, those of other vertices the rows of `others`; without
        `others`, the sums run over neighbours in `ids` only.
        """
        ...


@dataclass(frozen=True)
class CompleteWeights:
    """Equal weights between any two vertices: a sum over neighbours is the total minus the vertex's model."""

    size: int
    weight: float

    @property
    def edges(self) -> int:
        """N (N − 1) / 2."""
        return self.size * (self.size - 1) // 2 if self.weight else 0

    def matrix(self) -> csr_array:
        """Return A, which has N² entries."""
        return csr_array(self.weight * (np.ones((self.size, self.size)) - np.eye(self.size)))

    def neighbours(self, place: int) -> Neighbours:
        """Return all other vertices."""
        others = np.delete(np.arange(self.size if self.weight else 0), [place] if self.weight else [])
        return others, np.full(len(others), self.weight)

    def degrees(self, like: Tensor) -> Float[Tensor, "vertex 1"]:
        """Return (N − 1) · weight per vertex."""
        return like.new_full((self.size, 1), self.weight * (self.size - 1))

    def multiply(self, W: AllModels) -> AllModels:
        """Return A W: the total minus each vertex's model, times the weight."""
        return (W.sum(0) - W) * self.weight

    def sum_neighbours(
        self, ids: VertexIds, w: ChosenModels, others: AllModels | None
    ) -> tuple[Degrees, ChosenModels]:
        """Sum the old models of all vertices, then correct the sums for the new models of `ids`."""
        inside = CompleteWeights(len(ids), self.weight)
        if others is None or len(ids) == self.size:
            return inside.degrees(w), inside.multiply(w)
        old = others[ids]
        sums = (others.sum(0) - old) * self.weight + inside.multiply(w - old)
        return w.new_full((len(ids), 1), self.weight * (self.size - 1)), sums


@dataclass(frozen=True, eq=False)
class DenseWeights:
    """A small graph as a full matrix."""

    array: Float[Tensor, "vertex vertex"]
    _copies: dict[tuple[torch.device, torch.dtype], Tensor] = field(default_factory=dict, repr=False)
    _eigen_copies: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = field(
        default_factory=dict, repr=False
    )

    __repr__ = summarise_fields

    @property
    def size(self) -> int:
        """Number of vertices."""
        return len(self.array)

    @property
    def edges(self) -> int:
        """Number of joined pairs."""
        return int(self.array.count_nonzero()) // 2

    def matrix(self) -> csr_array:
        """Return A."""
        return csr_array(self.array.cpu().numpy())

    def neighbours(self, place: int) -> Neighbours:
        """Return the non-zero entries of a row of A."""
        row = self.array[place].cpu().double().numpy()
        places = np.flatnonzero(row)
        return places, row[places]

    def degrees(self, like: Tensor) -> Float[Tensor, "vertex 1"]:
        """Return the row sums of A."""
        return self._copy_like(like).sum(1, keepdim=True)

    @cached_property
    def lists(self) -> SparseWeights | None:
        """The same weights as lists of neighbours, if sums along these are faster on a CPU."""
        if self.size < LISTS_FROM or 2 * self.edges > LISTS_SHARE * self.size**2:
            return None
        return SparseWeights(self.matrix())

    def multiply(self, W: AllModels) -> AllModels:
        """Return A W."""
        if W.device.type == "cpu" and self.lists is not None:
            return self.lists.multiply(W)
        return self._copy_like(W) @ W

    def sum_neighbours(
        self, ids: VertexIds, w: ChosenModels, others: AllModels | None
    ) -> tuple[Degrees, ChosenModels]:
        """Multiply rows of A by the old models, then correct the sums for the new models of `ids`."""
        if w.device.type == "cpu" and self.lists is not None:
            return self.lists.sum_neighbours(ids, w, others)
        rows = self._copy_like(w)[ids]
        inside = rows[:, ids]
        if others is None or len(ids) == self.size:
            return inside.sum(1, keepdim=True), inside @ w
        return rows.sum(1, keepdim=True), rows @ others + inside @ (w - others[ids])

    @cached_property
    def _eigen(self) -> tuple[Tensor, Tensor]:
        a = self.array.cpu().double()
        values, vectors = torch.linalg.eigh(torch.diag(a.sum(1)) - a)
        return values.clamp_min(0).unsqueeze(1), vectors

    def eigendecomposition(
        self, like: Tensor
    ) -> tuple[Float[Tensor, "vertex 1"], Float[Tensor, "vertex vertex"]]:
        """Return eigenvalues and eigenvectors of L on the device of `like`."""
        key = (like.device, like.dtype)
        if key not in self._eigen_copies:
            values, vectors = self._eigen
            self._eigen_copies[key] = values.to(like), vectors.to(like)
        return self._eigen_copies[key]

    def _copy_like(self, w: Tensor) -> Tensor:
        """Return A on w's device in its precision; the array never changes, so copies are cached."""
        key = (w.device, w.dtype)
        if key not in self._copies:
            self._copies[key] = self.array.to(w)
        return self._copies[key]


def build_weights(csr: csr_array) -> Weights:
    """Build dense weights for a small graph and sparse weights for a large one."""
    csr.eliminate_zeros()
    small = csr.shape[0] <= DENSE_UP_TO
    return DenseWeights(torch.from_numpy(csr.toarray())) if small else SparseWeights(csr)
