"""Weights of edges that peers learn, from the distances of models and from degrees."""

from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedlap.algorithms.task import ClientScalars
from fedlap.graph import Graph

UNKNOWN = -1.0  # the degree of a peer that has not heard from its neighbours yet
OFFSET = 1.0  # δ, which keeps the logarithm of a degree finite

EdgeValues = Float[Tensor, "client heard"]


@dataclass(frozen=True, eq=False)
class Candidates:
    """The candidate edges: the positions of every client's neighbours and the largest weights to them."""

    places: Int64[Tensor, "client heard"]
    limits: EdgeValues
    _copies: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = field(
        default_factory=dict, repr=False
    )

    @staticmethod
    def of(graph: Graph) -> "Candidates":
        """Return the neighbours of every client in the order of `graph.neighbours`, padded by limits of 0."""
        lists = [graph.neighbours(k) for k in range(graph.size)]
        most = max(len(places) for places, _ in lists)
        places, limits = np.zeros((graph.size, most), np.int64), np.zeros((graph.size, most))
        for k, (near, values) in enumerate(lists):
            places[k, : len(near)], limits[k, : len(near)] = near, values
        return Candidates(torch.from_numpy(places), torch.from_numpy(limits))

    def copy_like(self, w: Tensor) -> tuple[Int64[Tensor, "client heard"], EdgeValues]:
        """Return positions and weights on w's device, the weights in its precision.

        Copies are cached, since a captured round must not copy from the host.
        """
        key = (w.device, w.dtype)
        if key not in self._copies:
            self._copies[key] = self.places.to(w.device), self.limits.to(w)
        return self._copies[key]


@dataclass(frozen=True)
class EdgeRule:
    """The rule by which both ends of an edge learn its weight: β, λ, and the length of a step γ."""

    degree_weight: float
    ridge: float
    lr: float

    def step(
        self,
        limits: EdgeValues,
        a: EdgeValues,
        squared: EdgeValues,
        degree: ClientScalars,
        others: EdgeValues,
    ) -> EdgeValues:
        """Return the weights after a projected gradient step, where the degrees of both ends are known.

        squared: ‖w_k − w_ℓ‖². degree, others: d_k and d_ℓ.
        """
        gain = 1 / (degree.clamp_min(0) + OFFSET) + 1 / (others.clamp_min(0) + OFFSET)
        slope = squared / 2 + self.degree_weight * (2 * self.ridge * a - gain)
        return torch.where(
            (degree >= 0) & (others >= 0), (a - self.lr * slope).clamp_min(0).minimum(limits), a
        )

    def penalty(self, a: EdgeValues, squared: EdgeValues) -> Float[Tensor, ""]:
        """Return ½ Σ_{k<ℓ} a_kℓ ‖w_k − w_ℓ‖² + β (λ Σ_{k<ℓ} a_kℓ² − Σ_k log(d_k + 1))."""
        degrees = self.ridge / 2 * a.square().sum() - (a.sum(1) + OFFSET).log().sum()
        return (a * squared).sum() / 4 + self.degree_weight * degrees
