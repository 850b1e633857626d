"""D-PSGD: peers average their models with those of their neighbours, and agree on one model."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from scipy import sparse
from torch import Tensor

from fedlap.algorithms.adaptation import check_fine_tuning
from fedlap.algorithms.interface import (
    ReceivedModels,
    ReceivedWeights,
    States,
    Traits,
    check_choice,
    check_local_work,
    check_no_server_vertex,
)
from fedlap.algorithms.local_updates import sgd
from fedlap.algorithms.task import Task
from fedlap.data.roster import Roster
from fedlap.errors import InputError
from fedlap.graph import Graph
from fedlap.models import Model
from fedlap.models.model import Stack
from fedlap.summaries import summarise_fields


class GossipPeer(NamedTuple):
    """A peer's model, and the change by its local steps that is not yet part of it."""

    model: Stack
    change: Stack


@dataclass(frozen=True)
class DPSGD:
    """D-PSGD (Lian et al. 2017, Algorithm 1): decentralised descent on one model by gossip averaging.

    d_k ← −μ Σ_r ∇F̃_k(·)                          the change by R local steps from w_k, at every client k
    w_k ← Σ_ℓ m_kℓ w_ℓ + d_k                       at every client k, with its neighbours' models before d

    The paper has R = 1 (set local_steps = 1). The models that peers exchange do not contain the local steps
    of the round, so that a peer can send while it computes. M is symmetric, its rows sum to one. The paper's
    output is the mean of all models; here every client is scored with its own.

    graph: its edges are the pairs that communicate; it needs to be connected for a common model.
    weights: "metropolis", m_kℓ = 1/(1 + max(d_k, d_ℓ)) with the numbers of neighbours d; or "graph",
        m_kℓ = a_kℓ, whose sums per client must be at most 1.
    lr: μ, the length of a local step.
    local_steps: R mini-batch steps per round (5 if neither is given; 1 in the paper), or …
    local_epochs: … R passes over the client's rows.
    fine_tune_steps: full gradient steps of length μ that each client takes on its training rows, from its
        model, before it is scored; they change neither training nor the wire.
    """

    graph: Graph
    weights: Literal["metropolis", "graph"] = "metropolis"
    lr: float = 0.03
    local_steps: int | None = None
    local_epochs: int | None = None
    fine_tune_steps: int | None = None

    exchanges: ClassVar[int] = 1  # per round
    traits: ClassVar[Traits] = Traits("one model", static="round")
    citation: ClassVar[str] = (
        "X. Lian, C. Zhang, H. Zhang, C.-J. Hsieh, W. Zhang and J. Liu. Can Decentralized Algorithms "
        "Outperform Centralized Algorithms? A Case Study for Decentralized Parallel Stochastic Gradient "
        "Descent. NIPS, 2017."
    )

    __repr__ = summarise_fields

    def __post_init__(self) -> None:
        check_no_server_vertex(self.graph, "but D-PSGD has no server; use fedavg", "dpsgd")
        check_choice("weights", self.weights, ("metropolis", "graph"), "dpsgd")
        check_local_work("dpsgd", self.lr, self.local_steps, self.local_epochs)
        check_fine_tuning("dpsgd", self.fine_tune_steps)
        if self.weights == "graph" and self.graph.largest_degree > 1 + 1e-12:
            raise InputError(
                f"weights = 'graph', whose weights sum to {self.graph.largest_degree:.4g} at a client; "
                "expected at most 1; scale the graph, or use 'metropolis'",
                field="weights",
                scope="dpsgd",
            )

    def bind(self, roster: Roster, model: Model) -> "DPSGD":
        """Return the method with its graph in the roster's order of clients."""
        return replace(self, graph=self.graph.align(roster.clients))

    @cached_property
    def gossip(self) -> Graph:
        """The graph with m_kℓ as weights."""
        return self.graph if self.weights == "graph" else compute_metropolis_weights(self.graph)

    def init_server(self, start: Stack) -> None:
        """Store nothing, as there is no server."""

    def init_clients(self, start: Stack, counts: Tensor) -> GossipPeer:
        """Store each client's model, without a change."""
        return GossipPeer(start.clone(), torch.zeros_like(start))

    def local(self, peer: GossipPeer, down: None, task: Task) -> tuple[GossipPeer, Stack]:
        """Run R mini-batch steps and store their change; send the model without it."""
        w = peer.model
        return GossipPeer(w, task.run(sgd, w, lr=self.lr) - w), w

    def public_models(self, peer: GossipPeer) -> Stack:
        """Return the models that neighbours know."""
        return peer.model

    def receive(self, known: Stack, message: Stack) -> Stack:
        """Return a neighbour's model, which is its message."""
        return message

    def in_neighbours(self, place: int) -> tuple[Int64[Tensor, "heard"], Float[Tensor, "heard"]]:
        """Return the positions of a client's neighbours, and m_kℓ."""
        places, weights = self.gossip.neighbours(place)
        return torch.from_numpy(places).long(), torch.from_numpy(weights)

    def count_messages(self) -> int:
        """Count two messages per edge."""
        return 2 * self.graph.edges

    def mix(self, exchange: int, state: States, received: ReceivedModels, weights: ReceivedWeights) -> States:
        """Average the models before the local steps, then add their change."""
        w, change = state[0]
        pull = (weights.unsqueeze(-1) * (w.unsqueeze(1) - received)).sum(1)
        return (GossipPeer(w - pull + change, torch.zeros_like(w)),)

    def mix_all(self, peers: GossipPeer) -> GossipPeer:
        """Average the models of all clients before the local steps, then add their changes."""
        w = self.gossip.mix_(peers.model.clone(), 1.0)
        return GossipPeer(w + peers.change, torch.zeros_like(w))

    def personal_models(self, server: None, peers: GossipPeer, clients: int) -> Stack:
        """Return each client's model."""
        return peers.model


def compute_metropolis_weights(graph: Graph) -> Graph:
    """Return the graph with weights 1/(1 + max(d_k, d_ℓ)), d the numbers of neighbours."""
    edges = sparse.coo_array(graph.weights.matrix())
    edges.eliminate_zeros()
    degrees = np.bincount(edges.row, minlength=edges.shape[0])
    weights = 1 / (1 + np.maximum(degrees[edges.row], degrees[edges.col]))
    return Graph.from_matrix(sparse.csr_array((weights, (edges.row, edges.col)), edges.shape), graph.clients)
