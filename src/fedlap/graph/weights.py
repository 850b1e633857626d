"""Three forms of a symmetric weight matrix A, each with the cheapest way to sum over neighbours."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from scipy.sparse import csr_array
from torch import Tensor

from fedlap.graph.sparse_weights import Chosen, Degrees, Ids, Models, Neighbours, SparseWeights

DENSE_UP_TO = 2_000  # vertices; a larger graph is kept sparse


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
        """A itself, sparse, on the host."""
        ...

    def row(self, place: int) -> Neighbours:
        """Places and weights of one vertex's neighbours, on the host."""
        ...

    def degrees(self, like: Tensor) -> Float[Tensor, "vertex 1"]:
        """Row sums of A, where `like` is."""
        ...

    def times(self, W: Models) -> Models:
        """A W: for each vertex, the weighted sum of its neighbours' models."""
        ...

    def near(self, ids: Ids, w: Chosen, elsewhere: Models | None) -> tuple[Degrees, Chosen]:
        """For each vertex in `ids` the sum of its neighbours' weights, and of their models so weighted.

        The models of `ids` are the rows of `w`, those of other vertices are in `elsewhere`; without it only
        neighbours in `ids` count.
        """
        ...


@dataclass(frozen=True)
class CompleteWeights:
    """The same weight between any two vertices: a sum over neighbours is the total less one's own."""

    size: int
    weight: float

    @property
    def edges(self) -> int:
        """N (N − 1) / 2."""
        return self.size * (self.size - 1) // 2 if self.weight else 0

    def matrix(self) -> csr_array:
        """A itself; it has N² entries."""
        return csr_array(self.weight * (np.ones((self.size, self.size)) - np.eye(self.size)))

    def row(self, place: int) -> Neighbours:
        """All others."""
        others = np.delete(np.arange(self.size if self.weight else 0), [place] if self.weight else [])
        return others, np.full(len(others), self.weight)

    def degrees(self, like: Tensor) -> Float[Tensor, "vertex 1"]:
        """(N − 1) · weight."""
        return like.new_full((self.size, 1), self.weight * (self.size - 1))

    def times(self, W: Models) -> Models:
        """The total less one's own."""
        return (W.sum(0) - W) * self.weight

    def near(self, ids: Ids, w: Chosen, elsewhere: Models | None) -> tuple[Degrees, Chosen]:
        """The total less one's own, at the old models, and then corrected for those in `ids`."""
        among = CompleteWeights(len(ids), self.weight)
        if elsewhere is None or len(ids) == self.size:
            return among.degrees(w), among.times(w)
        old = elsewhere[ids]
        near = (elsewhere.sum(0) - old) * self.weight + among.times(w - old)
        return w.new_full((len(ids), 1), self.weight * (self.size - 1)), near


@dataclass(frozen=True, eq=False)
class DenseWeights:
    """A small graph as a full matrix."""

    array: Float[Tensor, "vertex vertex"]
    _placed: dict[tuple[torch.device, torch.dtype], Tensor] = field(default_factory=dict, repr=False)
    _waves_placed: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = field(
        default_factory=dict, repr=False
    )

    @property
    def size(self) -> int:
        """Number of vertices."""
        return len(self.array)

    @property
    def edges(self) -> int:
        """Number of joined pairs."""
        return int(self.array.count_nonzero()) // 2

    def matrix(self) -> csr_array:
        """A itself."""
        return csr_array(self.array.cpu().numpy())

    def row(self, place: int) -> Neighbours:
        """What is not zero in a row of A."""
        row = self.array[place].cpu().double().numpy()
        places = np.flatnonzero(row)
        return places, row[places]

    def degrees(self, like: Tensor) -> Float[Tensor, "vertex 1"]:
        """Row sums of A."""
        return self._like(like).sum(1, keepdim=True)

    def times(self, W: Models) -> Models:
        """A W."""
        return self._like(W) @ W

    def near(self, ids: Ids, w: Chosen, elsewhere: Models | None) -> tuple[Degrees, Chosen]:
        """Some rows of A, times the old models, and then corrected for those in `ids`."""
        rows = self._like(w)[ids]
        among = rows[:, ids]
        if elsewhere is None or len(ids) == self.size:
            return among.sum(1, keepdim=True), among @ w
        return rows.sum(1, keepdim=True), rows @ elsewhere + among @ (w - elsewhere[ids])

    @cached_property
    def _waves(self) -> tuple[Tensor, Tensor]:
        a = self.array.cpu().double()
        values, vectors = torch.linalg.eigh(torch.diag(a.sum(1)) - a)
        return values.clamp_min(0).unsqueeze(1), vectors

    def waves(self, like: Tensor) -> tuple[Float[Tensor, "vertex 1"], Float[Tensor, "vertex vertex"]]:
        """Eigenvalues and eigenvectors of L, where `like` is."""
        place = (like.device, like.dtype)
        if place not in self._waves_placed:
            values, vectors = self._waves
            self._waves_placed[place] = values.to(like), vectors.to(like)
        return self._waves_placed[place]

    def _like(self, w: Tensor) -> Tensor:
        """A where w is. The array never changes, so a copy once placed stays right."""
        place = (w.device, w.dtype)
        if place not in self._placed:
            self._placed[place] = self.array.to(w)
        return self._placed[place]


def weights(csr: csr_array) -> Weights:
    """The form that fits the size."""
    csr.eliminate_zeros()
    small = csr.shape[0] <= DENSE_UP_TO
    return DenseWeights(torch.from_numpy(csr.toarray())) if small else SparseWeights(csr)
