"""FedU on a graph that the server learns from the clients' models."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from fedlap.algorithms.coupling import Coupling, Mixing
from fedlap.algorithms.fedu import CITATION
from fedlap.algorithms.interface import (
    GatheredRows,
    GlobalModel,
    Ids,
    Kind,
    RowUpdate,
    Steadiness,
    VertexModels,
    check_local_work,
)
from fedlap.algorithms.local_work import LocalWork
from fedlap.algorithms.task import Task
from fedlap.data.federation import Federation
from fedlap.errors import InputError, check_integer
from fedlap.graph import Graph
from fedlap.graph.implicit import solve_by_cholesky
from fedlap.graph.learning import PairMatrix, check_client_count, learn_weights, scale_to_rho
from fedlap.graph.weights import DenseWeights
from fedlap.models import Model
from fedlap.models.model import Stack

# Every client's model, the weights of the graph, the number of rounds, the mean of all starts, and which
# clients have trained.
FedULearnedServer = tuple[
    VertexModels, Float[Tensor, "vertex vertex"], Int64[Tensor, "1"], GlobalModel, Bool[Tensor, "vertex"]
]


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
    strength: η, of the pull between neighbours; by default min(0.01, 1/(μRρ)).
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
    strength: float | None = None
    lr: float = 0.03
    local_steps: int | None = None
    local_epochs: int | None = None
    learner: Literal["kernel", "smooth", "cosine"] = "kernel"
    nearest: int = 5
    warmup: int = 10
    every: int = 10
    mixing: Mixing = "explicit"
    allow_unstable: bool = False

    kind: ClassVar[Kind] = "multi-task"
    steady: ClassVar[Steadiness] = "local"
    citation: ClassVar[str] = CITATION

    def __post_init__(self) -> None:
        if self.graph.server:
            raise InputError(
                "the graph has a server vertex, whose edges cannot be learned; use fedu", scope="fedu-learned"
            )
        check_integer("nearest", self.nearest, 1, scope="fedu-learned")
        check_integer("warmup", self.warmup, 1, scope="fedu-learned")
        check_integer("every", self.every, 0, scope="fedu-learned")
        check_local_work("fedu-learned", self.lr, self.local_steps, self.local_epochs)
        self.coupling.check("fedu-learned", self.allow_unstable)

    def bind(self, federation: Federation, model: Model) -> "FedULearned":
        """Return the method with its graph in the federation's order of clients."""
        check_client_count(len(federation.clients))
        return replace(self, graph=self.graph.align(federation.clients))

    def check_sampling(self, sampled: int, clients: int) -> None:
        """Raise InputError if mixing would undo more than the sampled clients gain, as in FedU."""
        if not self.allow_unstable:
            degree = (1 - 1 / clients) * self.graph.rho  # no graph with this ρ has a larger degree
            self.coupling.check_sampling("fedu-learned", degree, sampled, clients)

    @property
    def coupling(self) -> Coupling:
        """Strength and step of the mixing in each round."""
        repeats = LocalWork.of(self.local_steps, self.local_epochs).repeats
        return Coupling(self.graph, self.strength, self.lr, repeats, mixing=self.mixing)

    def init(self, start: Stack) -> tuple[FedULearnedServer, None]:
        """Store every client's model and the prior graph at the server."""
        a = torch.from_numpy(self._prior_weights()).to(start)
        done = torch.zeros(1, dtype=torch.int64, device=start.device)
        trained = torch.zeros(len(start), dtype=torch.bool, device=start.device)
        return (start.clone(), a, done, start.mean(0, keepdim=True), trained), None

    def send(self, server: FedULearnedServer, ids: Ids) -> GatheredRows:
        """Send each sampled client its model."""
        return GatheredRows(server[0], ids)

    def local(self, private: None, w: Stack, task: Task) -> tuple[None, Stack]:
        """Run R mini-batch steps and send the model."""
        w = task.sgd(w, self.lr)
        return private, w

    def merge(
        self, server: FedULearnedServer, ids: Ids, ups: Stack
    ) -> tuple[RowUpdate, Tensor, Tensor, Tensor, Tensor]:
        """Learn the graph if it is due, then take one Laplacian step at the sampled clients."""
        W, a, done, start, trained = server
        done, trained = done + 1, trained.index_fill(0, ids, True)
        if self._is_learning_round(int(done)):
            a = self._learn_weights(W.index_copy(0, ids, ups), trained, start)
        weights, step = DenseWeights(a), self.coupling.step
        if self.mixing == "implicit":
            mixed = solve_by_cholesky(weights, ups, step, ids, W)
        else:
            mixed = Graph(None, weights).mix_(ups, step, ids, W)
        return RowUpdate(ids, mixed), a, done, start, trained

    def _is_learning_round(self, done: int) -> bool:
        past = done - self.warmup
        return past == 0 or (past > 0 and self.every > 0 and past % self.every == 0)

    def _prior_weights(self) -> PairMatrix:
        return np.asarray(self.graph.weights.matrix().toarray())

    def _learn_weights(
        self, W: VertexModels, trained: Bool[Tensor, "vertex"], start: GlobalModel
    ) -> Float[Tensor, "vertex vertex"]:
        """Learn the weights between trained clients, retain the others, and scale all to the prior ρ."""
        ids = trained.nonzero().flatten()
        places, clients = ids.cpu().numpy(), self.graph.clients
        names = None if clients is None else [clients[place] for place in places]
        a = self._prior_weights()
        share = self.graph.rho / len(W)  # the weight of a complete graph with the prior ρ
        a[np.ix_(places, places)] = share * learn_weights(W[ids], names, self.learner, self.nearest, start[0])
        return torch.from_numpy(share * scale_to_rho(a)).to(W)

    @staticmethod
    def learned_graph(server: FedULearnedServer, clients: Sequence[str] | None = None) -> Graph:
        """Return the current graph of a server state."""
        return Graph.from_matrix(server[1], clients)

    def penalty(self, server: FedULearnedServer, private: None) -> Float[Tensor, ""]:
        """Return (η/2) tr(WᵀLW)."""
        return self.coupling.eta / 2 * Graph(None, DenseWeights(server[1])).smoothness(server[0])

    def personal_models(self, server: FedULearnedServer, private: None, clients: int) -> Stack:
        """Return each client's model."""
        return server[0]
