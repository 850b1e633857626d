"""FedU on a graph that the server learns from the clients' models."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from fedlap.algorithms.coupling import Coupling, Mixing, Strength
from fedlap.algorithms.fedu import FEDU_CITATION
from fedlap.algorithms.interface import Traits, check_local_work, check_no_server_vertex
from fedlap.algorithms.local_updates import sgd
from fedlap.algorithms.server_state import ClientTable, GatheredRows, GlobalModel, Ids, VertexModels
from fedlap.algorithms.task import Task
from fedlap.data.roster import Roster
from fedlap.errors import check_integer
from fedlap.graph import Graph
from fedlap.graph.implicit import solve_by_cholesky
from fedlap.graph.learning import PairMatrix, check_client_count, learn_weights, scale_to_rho
from fedlap.graph.weights import DenseWeights
from fedlap.models import Model
from fedlap.models.model import Stack
from fedlap.summaries import summarise_fields


class FedULearnedServer(NamedTuple):
    """Every client's model, the learned weights, the rounds so far, the mean start, and who has trained."""

    models: ClientTable
    weights: Float[Tensor, "vertex vertex"]
    rounds: Int64[Tensor, "1"]
    start: GlobalModel
    trained: Bool[Tensor, "vertex"]

    @staticmethod
    def of(start: Stack, prior: Graph) -> "FedULearnedServer":
        """Start at the clients' start models and the prior graph; nobody has trained."""
        return FedULearnedServer(
            ClientTable(start.clone()),
            torch.from_numpy(get_weight_matrix(prior)).to(start),
            torch.zeros(1, dtype=torch.int64, device=start.device),
            start.mean(0, keepdim=True),
            torch.zeros(len(start), dtype=torch.bool, device=start.device),
        )

    @property
    def graph(self) -> Graph:
        """The learned graph."""
        return Graph(None, DenseWeights(self.weights))


@dataclass(frozen=True)
class FedULearned:
    """FedU (T. Dinh et al. 2022) on a graph that its server learns from the clients' models.

    w_k ← w_k − μ ∇F̃_k(w_k)                    R times, at each sampled client k
    w_k ← w_k − μRη Σ_ℓ a_kℓ (w_k − w_ℓ)        at the server, with the weights a_kℓ learned so far

    Training starts on a prior graph. After `warmup` rounds, and again every `every` rounds, the weights
    between clients that have trained are learned from their models. A pair with an untrained client retains
    its prior weight, since this client's model is still the common start. All weights are scaled to the ρ of
    the prior graph, so that a strength has the same effect.

    graph: the prior graph, for example the complete one if nothing is known.
    strength: η, of the pull between neighbours; by default as in FedU. "auto" chooses it by cross-validation
        on training rows.
    lr: μ, the length of a local step.
    local_steps: R mini-batch steps per round (5 if neither is given), or …
    local_epochs: … R passes over the client's rows.
    learner: "kernel" joins clients with close models, by a Gaussian of their distance; "smooth" finds the
        weights on which models are smoothest (Kalofolias 2016); "cosine" joins clients whose models have
        moved in the same direction from the start.
    nearest: approximate number of neighbours per client.
    warmup: rounds before the graph is first learned.
    every: rounds between learnings; 0 learns the graph once.
    mixing: "explicit" or "implicit", as in FedU.
    allow_unstable: accept a strength with μRηρ > 2, with which mixing alone diverges.
    """

    graph: Graph
    strength: Strength | None = None
    lr: float = 0.03
    local_steps: int | None = None
    local_epochs: int | None = None
    learner: Literal["kernel", "smooth", "cosine"] = "kernel"
    nearest: int = 5
    warmup: int = 10
    every: int = 10
    mixing: Mixing = "explicit"
    allow_unstable: bool = False

    traits: ClassVar[Traits] = Traits("multi-task", static="local")
    citation: ClassVar[str] = FEDU_CITATION

    __repr__ = summarise_fields

    def __post_init__(self) -> None:
        check_no_server_vertex(self.graph, "whose edges cannot be learned; use fedu", "fedu-learned")
        for name, least in (("nearest", 1), ("warmup", 1), ("every", 0)):
            check_integer(name, getattr(self, name), least, scope="fedu-learned")
        check_local_work("fedu-learned", self.lr, self.local_steps, self.local_epochs)
        self.coupling.check("fedu-learned", self.allow_unstable)

    def bind(self, roster: Roster, model: Model) -> "FedULearned":
        """Return the method with its graph in the roster's order of clients."""
        check_client_count(len(roster.clients))
        return replace(self, graph=self.graph.align(roster.clients))

    def check_sampling(self, sampled: int, clients: int) -> None:
        """Raise InputError if mixing would undo more than the sampled clients gain, as in FedU."""
        if not self.allow_unstable:
            # No graph with this ρ has a larger degree.
            self.coupling.check_sampling("fedu-learned", (1 - 1 / clients) * self.graph.rho, sampled, clients)

    @cached_property
    def coupling(self) -> Coupling:
        """Strength and step of the mixing in each round."""
        return Coupling.of(self)

    def init_server(self, start: Stack) -> FedULearnedServer:
        """Store every client's model and the prior graph at the server."""
        return FedULearnedServer.of(start, self.graph)

    def init_clients(self, start: Stack, counts: Tensor) -> None:
        """Store nothing at the clients."""

    def send(self, server: FedULearnedServer, ids: Ids) -> GatheredRows:
        """Send each sampled client its model."""
        return server.models.rows(ids)

    def local(self, private: None, w: Stack, task: Task) -> tuple[None, Stack]:
        """Run R mini-batch steps and send the model."""
        return private, task.run(sgd, w, lr=self.lr)

    def merge(self, server: FedULearnedServer, ids: Ids, w: Stack) -> FedULearnedServer:
        """Learn the graph if it is due, then take one Laplacian step at the sampled clients."""
        W, a = server.models.values, server.weights
        rounds, trained = server.rounds + 1, server.trained.index_fill(0, ids, True)
        if self._is_learning_round(int(rounds)):
            current = W.index_copy(0, ids, w)
            a = relearn_weights(self.graph, current, trained, server.start, self.learner, self.nearest)
        weights, step = DenseWeights(a), self.coupling.step
        if self.mixing == "implicit":
            mixed = solve_by_cholesky(weights, w, step, ids, W)
        else:
            mixed = Graph(None, weights).mix_(w, step, ids, W)
        return FedULearnedServer(server.models.with_rows(ids, mixed), a, rounds, server.start, trained)

    def _is_learning_round(self, done: int) -> bool:
        past = done - self.warmup
        return past == 0 or (past > 0 and self.every > 0 and past % self.every == 0)

    @staticmethod
    def learned_graph(server: tuple[Any, ...], clients: Sequence[str] | None = None) -> Graph:
        """Return the current graph of a server state."""
        return Graph.from_matrix(FedULearnedServer(*server).weights, clients)  # checkpoints have plain tuples

    def penalty(self, server: FedULearnedServer, private: None) -> Float[Tensor, ""]:
        """Return (η/2) tr(WᵀLW)."""
        return self.coupling.eta / 2 * server.graph.smoothness(server.models.values)

    def personal_models(self, server: FedULearnedServer, private: None, clients: int) -> Stack:
        """Return each client's model."""
        return server.models.values


def get_weight_matrix(graph: Graph) -> PairMatrix:
    """Return the weights of a graph as a dense matrix."""
    return np.asarray(graph.weights.matrix().toarray())


def relearn_weights(
    prior: Graph,
    W: VertexModels,
    trained: Bool[Tensor, "vertex"],
    start: GlobalModel,
    learner: str,
    nearest: int,
) -> Float[Tensor, "vertex vertex"]:
    """Learn the weights between trained clients, retain the others, and scale all to the prior ρ.

    Models that are not finite teach nothing; scoring reports that their run has diverged.
    """
    ids = (trained & W.isfinite().all(1)).nonzero().flatten()
    places, clients = ids.cpu().numpy(), prior.clients
    names = None if clients is None else [clients[place] for place in places]
    a = get_weight_matrix(prior)
    share = prior.rho / len(W)  # the weight of a complete graph with the prior ρ
    if len(ids):
        a[np.ix_(places, places)] = share * learn_weights(W[ids], names, learner, nearest, start[0])
    return torch.from_numpy(share * scale_to_rho(a)).to(W)
