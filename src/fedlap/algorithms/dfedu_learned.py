"""dFedU between peers that learn the weights of their edges."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedlap.algorithms.coupling import Coupling, Strength
from fedlap.algorithms.edge_learning import (
    UNKNOWN,
    Candidates,
    EdgeRule,
    EdgeValues,
)
from fedlap.algorithms.interface import (
    ReceivedModels,
    ReceivedWeights,
    States,
    Traits,
    check_local_work,
    check_no_server_vertex,
)
from fedlap.algorithms.local_updates import sgd
from fedlap.algorithms.local_work import LocalWork
from fedlap.algorithms.task import ClientScalars, Task
from fedlap.data.roster import Roster
from fedlap.errors import check_number
from fedlap.graph import Graph
from fedlap.graph.learning import check_client_count, compute_squared_distances
from fedlap.models import Model
from fedlap.models.model import Stack
from fedlap.summaries import summarise_fields


class LearningPeer(NamedTuple):
    """A peer's model, the shares a_kℓ/c_kℓ of its candidate edges, and its degree."""

    model: Stack
    shares: EdgeValues
    degree: ClientScalars


@dataclass(frozen=True)
class DFedULearned:
    """dFedU on a graph that the peers learn (Zantedeschi, Bellet and Tommasi 2020), in alternating steps.

    J(W, a) = Σ_k F_k(w_k) + η/2 Σ_{k<ℓ} a_kℓ ‖w_k − w_ℓ‖² + ηβ (λ Σ_{k<ℓ} a_kℓ² − Σ_k log(d_k + 1))
    w_k ← w_k − μ ∇F̃_k(w_k)                    R times, at every client k
    w_k ← w_k − μRη Σ_ℓ a_kℓ (w_k − w_ℓ)        at every client k, from its neighbours' models
    a_kℓ ← a_kℓ − γ (½‖w_k − w_ℓ‖² + β (2λ a_kℓ − 1/(d_k + 1) − 1/(d_ℓ + 1))), clipped to [0, c_kℓ]

    The third line is a projected gradient step on J/η, from the models and degrees d_k = Σ_ℓ a_kℓ before the
    second; both ends of an edge compute the same. A message is a model and a degree. Learning begins in the
    second round, when all degrees are known.

    In the paper models are trained by boosting or coordinate descent, losses are weighted by degrees, and a
    peer updates the weights to a few random peers. Here models are trained by dFedU's steps, losses have
    weight 1, as in FedU, and all candidate edges are updated in every round: their messages are sent even
    where a weight is zero. The upper limit c_kℓ is not in the paper: with it ρ never exceeds that of the
    candidate graph, so that a stable strength remains stable.

    graph: c_kℓ, the candidate edges with their largest weights, with which training starts.
    strength: η, of the pull; by default as in dFedU, for the candidate graph. "auto" chooses it by
        cross-validation.
    degree_weight: β, of degrees (5, not from the paper: about 5 neighbours at a squared distance of 4).
    ridge: λ; above 0 weights are spread over more edges (0.01, not from the paper, which tunes it).
    graph_lr: γ; by default 1/(β(2λ + 2m)) with at most m candidates per client, with which J cannot rise.
    lr: μ, the length of a local step.
    local_steps: R mini-batch steps per round (5 if neither is given), or …
    local_epochs: … R passes over the client's rows.
    allow_unstable: accept a strength with μRηρ > 2, with which mixing alone diverges.
    """

    graph: Graph
    strength: Strength | None = None
    degree_weight: float = 5.0
    ridge: float = 0.01
    graph_lr: float | None = None
    lr: float = 0.03
    local_steps: int | None = None
    local_epochs: int | None = None
    allow_unstable: bool = False

    exchanges: ClassVar[int] = 1  # per round
    traits: ClassVar[Traits] = Traits("multi-task", static="round")
    citation: ClassVar[str] = (
        "V. Zantedeschi, A. Bellet and M. Tommasi. Fully Decentralized Joint Learning of Personalized Models "
        "and Collaboration Graphs. AISTATS, 2020."
    )

    __repr__ = summarise_fields

    def __post_init__(self) -> None:
        check_no_server_vertex(self.graph, "but peers have no server; use fedu-learned", "dfedu-learned")
        check_number("degree_weight", self.degree_weight, zero=False, scope="dfedu-learned")
        check_number("ridge", self.ridge, zero=True, scope="dfedu-learned")
        if self.graph_lr is not None:
            check_number("graph_lr", self.graph_lr, zero=True, scope="dfedu-learned")
        check_local_work("dfedu-learned", self.lr, self.local_steps, self.local_epochs)
        self.coupling.check("dfedu-learned", self.allow_unstable)

    def bind(self, roster: Roster, model: Model) -> "DFedULearned":
        """Return the method with its candidate graph in the roster's order of clients."""
        check_client_count(len(roster.clients))
        return replace(self, graph=self.graph.align(roster.clients))

    @cached_property
    def coupling(self) -> Coupling:
        """Strength and step of the mixing in each round, on the candidate graph."""
        repeats = LocalWork.of(self.local_steps, self.local_epochs).repeats
        return Coupling(self.graph, self.strength, self.lr, repeats)

    @cached_property
    def candidates(self) -> Candidates:
        """The candidate edges of all clients."""
        return Candidates.of(self.graph)

    @property
    def rule(self) -> EdgeRule:
        """The rule by which weights are learned."""
        largest = max(1, self.candidates.places.shape[1])  # number of a client's edges; a graph may have none
        default = 1 / (2 * self.degree_weight * (self.ridge + largest))
        return EdgeRule(self.degree_weight, self.ridge, default if self.graph_lr is None else self.graph_lr)

    def init_server(self, start: Stack) -> None:
        """Store nothing, as there is no server."""

    def init_clients(self, start: Stack, counts: Tensor) -> LearningPeer:
        """Store each client's model; all candidate edges start at their largest weight."""
        shares = start.new_ones(len(start), self.candidates.places.shape[1])
        return LearningPeer(start.clone(), shares, start.new_full((len(start), 1), UNKNOWN))

    def local(self, peer: LearningPeer, down: None, task: Task) -> tuple[LearningPeer, Stack]:
        """Run R mini-batch steps; store the model, send it and the degree."""
        peer = peer._replace(model=task.run(sgd, peer.model, lr=self.lr))
        return peer, self.public_models(peer)

    def public_models(self, peer: LearningPeer) -> Stack:
        """Return what neighbours know: the models, each followed by the degree."""
        return torch.cat([peer.model, peer.degree], 1)

    def receive(self, known: Stack, message: Stack) -> Stack:
        """Return a neighbour's model and degree, which are its message."""
        return message

    def in_neighbours(self, place: int) -> tuple[Int64[Tensor, "heard"], Float[Tensor, "heard"]]:
        """Return the positions of a client's candidate neighbours, and c_kℓ."""
        places, weights = self.graph.neighbours(place)
        return torch.from_numpy(places).long(), torch.from_numpy(weights)

    def count_messages(self) -> int:
        """Count two messages per candidate edge."""
        return 2 * self.graph.edges

    def mix(self, exchange: int, state: States, received: ReceivedModels, weights: ReceivedWeights) -> States:
        """Take a step towards the neighbours' models, and one on the weights of the edges."""
        w, shares, degree = state[0]
        others, degrees = received[..., :-1], received[..., -1]
        away, used = w.unsqueeze(1) - others, shares[:, : weights.shape[1]]
        a = weights * used
        mixed = w - self.coupling.step * (a.unsqueeze(2) * away).sum(1)
        learned = self.rule.step(weights, a, away.square().sum(2), degree, degrees)
        shares = torch.cat([learned / weights, shares[:, weights.shape[1] :]], 1)
        return (LearningPeer(mixed, shares, learned.sum(1, keepdim=True)),)

    def mix_all(self, peers: LearningPeer) -> LearningPeer:
        """Do this at every client, by products with the matrix of weights."""
        w, shares, degree = peers
        places, limits = self.candidates.copy_like(w)
        a = limits * shares
        matrix = w.new_zeros(len(w), len(w)).scatter_add(1, places, a)
        mixed = w - self.coupling.step * (a.sum(1, keepdim=True) * w - matrix @ w)
        squared = compute_squared_distances(w).gather(1, places).to(w)
        learned = self.rule.step(limits, a, squared, degree, degree.flatten()[places])
        shares = torch.where(limits > 0, learned / limits, shares)
        return LearningPeer(mixed, shares, learned.sum(1, keepdim=True))

    def penalty(self, server: None, peers: LearningPeer) -> Float[Tensor, ""]:
        """Return η/2 Σ a_kℓ ‖w_k − w_ℓ‖² + ηβ (λ Σ a_kℓ² − Σ log(d_k + 1))."""
        w = peers.model.double()
        places, limits = self.candidates.copy_like(w)
        a = limits * peers.shares.double()
        return self.coupling.eta * self.rule.penalty(a, compute_squared_distances(w).gather(1, places))

    def personal_models(self, server: None, peers: LearningPeer, clients: int) -> Stack:
        """Return each client's model."""
        return peers.model
