"""GTVMin: the network lasso between peers by a primal–dual method, with a duality gap."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedlap.algorithms.coupling import compute_distances
from fedlap.algorithms.edge_learning import Candidates, EdgeValues
from fedlap.algorithms.interface import (
    ReceivedModels,
    ReceivedWeights,
    States,
    Traits,
    check_local_work,
    check_no_server_vertex,
)
from fedlap.algorithms.local_updates import sgd
from fedlap.algorithms.task import ClientScalars, Task
from fedlap.data.roster import Roster
from fedlap.errors import check_number
from fedlap.graph import Graph
from fedlap.models import Model
from fedlap.models.dense import DenseNetwork
from fedlap.models.model import Stack
from fedlap.summaries import summarise_fields

EdgeVectors = Float[Tensor, "client heard param"]


class PrimalDualPeer(NamedTuple):
    """The state of a peer.

    model: w_k. duals: u_kℓ, one vector per neighbour. pull: Σ_ℓ (2u_kℓ⁺ − u_kℓ). step: τ.
    edge_gap: the client's half of its edges' part of the gap.
    """

    model: Stack
    duals: EdgeVectors
    pull: Stack
    step: ClientScalars
    edge_gap: ClientScalars


@dataclass(frozen=True)
class GTVMin:
    """GTVMin (SarcheshmehPour, Tian, Zhang and Jung 2023, Algorithm 2): the network lasso, primal and dual.

    J(W) = Σ_k F_k(w_k) + λ Σ_{k<ℓ} a_kℓ ‖w_k − w_ℓ‖                         the problem, not smoothed
    w_k ← argmin F_k(w) + w·Σ_ℓ (2u_kℓ⁺ − u_kℓ) + ‖w − w_k‖²/(2τ)            at every client k
    u_kℓ ← the nearest point to u_kℓ + σ (w_k − w_ℓ) with norm ≤ λa_kℓ        at both ends, u_ℓk = −u_kℓ

    with τ = s/m and σ = 1/(2s), for at most m neighbours per client, so that τσ‖D‖² ≤ 1 for the incidence
    matrix D. The first step is R steps w ← w − μ (∇F̃_k(w) + Σ_ℓ (2u⁺ − u) + (w − w_k)/τ) here; the paper
    solves it exactly. The paper extrapolates models and has τ = 1/d_k, σ = ½; here duals are extrapolated,
    which exchanges the roles of both in the same method, so that no peer stores its neighbours' models. Peers
    store a dual vector per neighbour. A message is a model.

    With l2 > 0 and a linear model, J(W) − J* is at most the reported gap:

    Σ_{k<ℓ} (λa_kℓ ‖w_k − w_ℓ‖ − u_kℓ·(w_k − w_ℓ)) + Σ_k ‖∇F_k(w_k) + Σ_ℓ u_kℓ‖²/(2 l2)

    since F_k(w) + F_k*(y) ≤ w·y + ‖y − ∇F_k(w)‖²/(2 l2). For other models the gap is infinite.

    graph: a_kℓ, the weights between clients.
    strength: λ (0.01, as for lasso).
    balance: s; larger values give models longer steps and duals shorter ones (1, as in the paper).
    lr: μ, the length of a local step, stable if μ(L + m/s) < 2, with L the largest curvature of F_k.
    local_steps: R mini-batch steps per round (5 if neither is given), or …
    local_epochs: … R passes over the client's rows; more of either solve the first step better.
    """

    graph: Graph
    strength: float = 0.01
    balance: float = 1.0
    lr: float = 0.03
    local_steps: int | None = None
    local_epochs: int | None = None
    _modulus: float = field(default=0.0, repr=False)  # strong convexity of F_k, set by `bind`

    exchanges: ClassVar[int] = 1  # per round
    traits: ClassVar[Traits] = Traits("multi-task", static="round")
    citation: ClassVar[str] = (
        "Y. SarcheshmehPour, Y. Tian, L. Zhang and A. Jung. Clustered Federated Learning via Generalized "
        "Total Variation Minimization. IEEE Transactions on Signal Processing, 2023."
    )

    __repr__ = summarise_fields

    def __post_init__(self) -> None:
        check_no_server_vertex(self.graph, "but peers have no server; use lasso", "gtvmin")
        check_number("strength", self.strength, zero=True, scope="gtvmin")
        check_number("balance", self.balance, zero=False, scope="gtvmin")
        check_local_work("gtvmin", self.lr, self.local_steps, self.local_epochs)

    def bind(self, roster: Roster, model: Model) -> "GTVMin":
        """Return the method with its graph in the roster's order of clients, for this model."""
        network = model.network
        is_linear = isinstance(network, DenseNetwork) and len(network.widths) == 2
        return replace(self, graph=self.graph.align(roster.clients), _modulus=model.l2 if is_linear else 0.0)

    @cached_property
    def edges(self) -> Candidates:
        """The neighbours of all clients, and the weights to them."""
        return Candidates.of(self.graph)

    def init_server(self, start: Stack) -> None:
        """Store nothing, as there is no server."""

    def init_clients(self, start: Stack, counts: Tensor) -> PrimalDualPeer:
        """Store each client's model, and dual vectors of zero."""
        most = self.edges.places.shape[1]
        step = start.new_full((len(start), 1), self.balance / max(most, 1))
        duals = start.new_zeros(len(start), most, start.shape[1])
        return PrimalDualPeer(start.clone(), duals, torch.zeros_like(start), step, torch.zeros_like(step))

    def local(self, peer: PrimalDualPeer, down: None, task: Task) -> tuple[PrimalDualPeer, Stack]:
        """Run R mini-batch steps with the pull of the duals and to the last model; send the model."""
        w, shift = peer.model, self.lr * peer.pull
        w = task.run(sgd, w, lr=self.lr, anchor=w, pull=self.lr / peer.step, shift=shift)
        return peer._replace(model=w), w

    def public_models(self, peer: PrimalDualPeer) -> Stack:
        """Return the models that neighbours know."""
        return peer.model

    def receive(self, known: Stack, message: Stack) -> Stack:
        """Return a neighbour's model, which is its message."""
        return message

    def in_neighbours(self, place: int) -> tuple[Int64[Tensor, "heard"], Float[Tensor, "heard"]]:
        """Return the positions of a client's neighbours, and a_kℓ."""
        places, weights = self.graph.neighbours(place)
        return torch.from_numpy(places).long(), torch.from_numpy(weights)

    def count_messages(self) -> int:
        """Count two messages per edge."""
        return 2 * self.graph.edges

    def mix(self, exchange: int, state: States, received: ReceivedModels, weights: ReceivedWeights) -> States:
        """Take a step on the dual vectors of a client's edges."""
        peer, heard = state[0], weights.shape[1]
        changed = self._step(peer._replace(duals=peer.duals[:, :heard]), received, weights)
        return (changed._replace(duals=torch.cat([changed.duals, peer.duals[:, heard:]], 1)),)

    def mix_all(self, peers: PrimalDualPeer) -> PrimalDualPeer:
        """Take a step on the dual vectors of all edges."""
        places, weights = self.edges.copy_like(peers.model)
        return self._step(peers, peers.model[places], weights)

    def _step(self, peer: PrimalDualPeer, received: ReceivedModels, weights: EdgeValues) -> PrimalDualPeer:
        w, u = peer.model, peer.duals
        away, radius = w.unsqueeze(1) - received, self.strength * weights
        new = u + away / (2 * self.balance)
        length = new.norm(dim=2)
        new = new * torch.where(length > radius, radius / length, 1.0).unsqueeze(2)
        gaps = radius * away.norm(dim=2) - (new * away).sum(2)
        return PrimalDualPeer(w, new, (2 * new - u).sum(1), peer.step, gaps.sum(1, keepdim=True) / 2)

    def gap(self, peer: PrimalDualPeer, w: Stack, task: Task) -> ClientScalars:
        """Return each client's part of the bound on J(W) − J*."""
        if not self._modulus:
            return torch.full_like(peer.edge_gap, torch.inf)
        residual = task.full_gradient(w) + peer.duals.sum(1)
        return peer.edge_gap + residual.square().sum(1, keepdim=True) / (2 * self._modulus)

    def penalty(self, server: None, peers: PrimalDualPeer) -> Float[Tensor, ""]:
        """Return λ Σ_{k<ℓ} a_kℓ ‖w_k − w_ℓ‖."""
        w = peers.model.double()
        places, weights = self.edges.copy_like(w)
        return self.strength / 2 * (weights * compute_distances(w, w).gather(1, places)).sum()

    def personal_models(self, server: None, peers: PrimalDualPeer, clients: int) -> Stack:
        """Return each client's model."""
        return peers.model
