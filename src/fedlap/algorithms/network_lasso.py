"""The network lasso: FedU with distances between neighbours instead of squared distances."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedlap.algorithms.coupling import Coupling, Strength, compute_distances
from fedlap.algorithms.interface import Traits, check_local_work
from fedlap.algorithms.local_updates import sgd
from fedlap.algorithms.local_work import LocalWork
from fedlap.algorithms.server_state import ClientModels, GatheredRows, Ids, VertexModels, add_server_vertex
from fedlap.algorithms.task import Task
from fedlap.data.roster import Roster
from fedlap.errors import check_number
from fedlap.graph import Graph
from fedlap.models import Model
from fedlap.models.model import Stack
from fedlap.summaries import summarise_fields

VERTICES_PER_BLOCK = 64  # vertices whose neighbours are gathered together


@dataclass(frozen=True)
class NetworkLasso:
    """The network lasso (Hallac et al. 2015) by FedU's Algorithm 1: neighbours pull with bounded force.

    J(W) = Σ_k F_k(w_k) + η Σ_{k<ℓ} a_kℓ h(‖w_k − w_ℓ‖)
    w_k ← w_k − μ ∇F̃_k(w_k)                                      R times, at each sampled client k
    w_k ← w_k − μRη Σ_ℓ a_kℓ (w_k − w_ℓ) / max(‖w_k − w_ℓ‖, ε)    at the server, all from the same old values

    h is the distance of the paper's problem, smoothed near zero (Huber): h(r) = r²/(2ε) up to ε and r − ε/2
    above, so that mixing is a gradient step on J, stable if μRηρ/ε ≤ 2. A neighbour pulls with a force of at
    most a_kℓ at any distance; in FedU the force is a_kℓ times the distance. Clusters therefore contract and
    stay apart from each other. The paper's solver is ADMM.

    Unsampled neighbours count at their last model. A round computes one distance per neighbour of a sampled
    client, in blocks of clients, and needs memory for one more model of each neighbour.

    graph: a_kℓ, the weights between clients; a server vertex (F₀ = 0) takes part in every round.
    strength: η, of the pull; by default min(0.01, ε/(μRρ)), with ρ the largest eigenvalue of the Laplacian.
        "auto" chooses it by cross-validation on training rows (see `choose_strength`).
    smoothing: ε, the distance up to which neighbours pull as in FedU with strength η/ε (0.1, not from the
        paper; models trained alone on the embedded data are 1 to 4 apart).
    lr: μ, the length of a local step.
    local_steps: R mini-batch steps per round (5 if neither is given), or …
    local_epochs: … R passes over the client's rows.
    allow_unstable: accept a strength with μRηρ/ε > 2, with which models nearer than ε may oscillate.
    """

    graph: Graph
    strength: Strength | None = None
    smoothing: float = 0.1
    lr: float = 0.03
    local_steps: int | None = None
    local_epochs: int | None = None
    allow_unstable: bool = False

    traits: ClassVar[Traits] = Traits("multi-task", static="local", merges="neighbours")
    citation: ClassVar[str] = (
        "D. Hallac, J. Leskovec and S. Boyd. Network Lasso: Clustering and Optimization in Large Graphs. "
        "KDD, 2015."
    )

    __repr__ = summarise_fields

    def __post_init__(self) -> None:
        check_local_work("lasso", self.lr, self.local_steps, self.local_epochs)
        check_number("smoothing", self.smoothing, zero=False, scope="lasso")
        self.coupling.check("lasso", self.allow_unstable)

    def bind(self, roster: Roster, model: Model) -> "NetworkLasso":
        """Return the method with its graph in the roster's order of clients."""
        return replace(self, graph=self.graph.align(roster.clients))

    @cached_property
    def coupling(self) -> Coupling:
        """Strength and step of the mixing in each round."""
        repeats = LocalWork.of(self.local_steps, self.local_epochs).repeats
        return Coupling(self.graph, self.strength, self.lr, repeats, self.smoothing)

    def init_server(self, start: Stack) -> ClientModels:
        """Store every client's model at the server; a server vertex starts at their mean."""
        return ClientModels.start(start, self.graph)

    def init_clients(self, start: Stack, counts: Tensor) -> None:
        """Store nothing at the clients."""

    def send(self, server: ClientModels, ids: Ids) -> GatheredRows:
        """Send each sampled client its model."""
        return server.models.rows(ids)

    def local(self, private: None, w: Stack, task: Task) -> tuple[None, Stack]:
        """Run R mini-batch steps and send the model."""
        return private, task.run(sgd, w, lr=self.lr)

    def merge(self, server: ClientModels, ids: Ids, up: Stack) -> ClientModels:
        """Take a step along the penalty's gradient at the sampled clients."""
        W = server.models.values
        ids, up = add_server_vertex(self.graph, W, ids, up)
        new = ids.new_full((len(W),), -1).index_copy(0, ids, torch.arange(len(ids), device=ids.device))
        pulls = []
        for block, w in zip(ids.split(VERTICES_PER_BLOCK), up.split(VERTICES_PER_BLOCK), strict=True):
            neighbours, weights = gather_neighbours(self.graph, block, W)
            place = new[neighbours]  # of a neighbour among the sampled clients, or −1
            others = torch.where((place < 0).unsqueeze(1), W[neighbours], up[place])
            force = weights / compute_distances(w, others).clamp_min(self.smoothing)
            pulls.append(force.sum(1, keepdim=True) * w - force @ others)
        mixed = up - self.coupling.step * torch.cat(pulls)
        return ClientModels(server.models.with_rows(ids, mixed))

    def penalty(self, server: ClientModels, private: None) -> Float[Tensor, ""]:
        """Return η Σ_{k<ℓ} a_kℓ h(‖w_k − w_ℓ‖)."""
        W = server.models.values.double()
        total = W.new_zeros(())
        for ids in torch.arange(len(W), device=W.device).split(VERTICES_PER_BLOCK):
            neighbours, weights = gather_neighbours(self.graph, ids, W)
            distance = compute_distances(W[ids], W[neighbours])
            close = distance.clamp_max(self.smoothing)
            total = total + (weights * (close.square() / (2 * self.smoothing) + distance - close)).sum()
        return self.coupling.eta / 2 * total  # the sum counts every pair twice

    def personal_models(self, server: ClientModels, private: None, clients: int) -> Stack:
        """Return each client's model."""
        return server.models.values[:clients]


def gather_neighbours(
    graph: Graph, ids: Ids, W: VertexModels
) -> tuple[Int64[Tensor, "near"], Float[Tensor, "client near"]]:
    """Return the union of the neighbours of vertices `ids`, and the weights to them, on the device of W."""
    lists = [graph.neighbours(k) for k in ids.tolist()]
    union = np.unique(np.concatenate([places for places, _ in lists]))
    weights = np.zeros((len(lists), len(union)))
    for row, (places, values) in zip(weights, lists, strict=True):
        row[np.searchsorted(union, places)] = values
    return torch.from_numpy(union).to(W.device, torch.int64), torch.from_numpy(weights).to(W)
