"""FedU on a graph that the server learns from the models it keeps."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from fedlap.algorithms.coupling import Coupling, Mixing
from fedlap.algorithms.fedu import CITATION
from fedlap.algorithms.interface import Everyone, Ids, Kind, One, Own, Rows, Steadiness, check_work
from fedlap.algorithms.local_work import LocalWork
from fedlap.algorithms.task import Stack, Task
from fedlap.data.federation import Federation
from fedlap.errors import InputError, whole
from fedlap.graph import Graph
from fedlap.graph.implicit import by_factors
from fedlap.graph.learning import Square, check_size, learned_weights, scaled
from fedlap.graph.weights import DenseWeights
from fedlap.models import Model

# Every client's model, the weights of the graph, how many rounds are done, the mean of all starts, and which
# clients have worked.
Kept = tuple[Everyone, Float[Tensor, "vertex vertex"], Int64[Tensor, "1"], One, Bool[Tensor, "vertex"]]


@dataclass(frozen=True)
class FedULearned:
    """FedU (T. Dinh et al. 2022) on a graph that its server learns from the models that it keeps anyway.

    It begins on a given graph. After `warmup` rounds, and again every `every` rounds, the weights between
    clients that have worked so far are learned from their models. A pair of which one has not worked keeps
    its given weight: that client's model is still the common start and tells nothing. All weights are scaled
    to the ρ of the given graph, so that the strength means the same.

    graph: what is known before, such as nothing (complete).
    strength: η, how much neighbours are pulled together; by default min(0.01, 1/(μRρ)).
    lr: μ, the length of a local step.
    local_steps: R mini-batch steps a round (5 where neither is given), or …
    local_epochs: … R passes over the client's rows.
    learner: "kernel" joins those whose models are near, by a Gaussian of their distance; "smooth" finds the
        weights on which models are smoothest (Kalofolias 2016); "cosine" joins those that have gone the same
        way.
    nearest: about how many neighbours a client gets.
    warmup: rounds before a graph is learned.
    every: rounds until it is learned again; 0 keeps the first.
    mixing: "explicit" or "implicit", as in FedU.
    allow_unstable: take a strength with μRηρ > 2, which the mixing alone makes diverge.
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
                "the graph has a server vertex, whose edges none learns; use fedu", scope="fedu-learned"
            )
        whole("nearest", self.nearest, 1, scope="fedu-learned")
        whole("warmup", self.warmup, 1, scope="fedu-learned")
        whole("every", self.every, 0, scope="fedu-learned")
        check_work("fedu-learned", self.lr, self.local_steps, self.local_epochs)
        self.coupling.check("fedu-learned", self.allow_unstable)

    def suited(self, federation: Federation, model: Model) -> "FedULearned":
        """The same method with its graph in the federation's order of clients."""
        check_size(len(federation.clients))
        return replace(self, graph=self.graph.aligned(federation.clients))

    def check_sampling(self, sampled: int, clients: int) -> None:
        """Refuse a strength that takes back more than the sampled clients have gained, as FedU does."""
        if not self.allow_unstable:
            degree = (1 - 1 / clients) * self.graph.rho  # no graph has one above
            self.coupling.check_sampling("fedu-learned", degree, sampled, clients)

    @property
    def coupling(self) -> Coupling:
        """The mixing of a round."""
        repeats = LocalWork.of(self.local_steps, self.local_epochs).repeats
        return Coupling(self.graph, self.strength, self.lr, repeats, mixing=self.mixing)

    def begin(self, start: Stack) -> tuple[Kept, None]:
        """The server keeps every model, and the graph."""
        a = torch.from_numpy(self._given()).to(start)
        done = torch.zeros(1, dtype=torch.int64, device=start.device)
        worked = torch.zeros(len(start), dtype=torch.bool, device=start.device)
        return (start.clone(), a, done, start.mean(0, keepdim=True), worked), None

    def send(self, kept: Kept, ids: Ids) -> Own:
        """Each sampled client is told its own model."""
        return Own(kept[0], ids)

    def local(self, private: None, w: Stack, task: Task) -> tuple[None, Stack]:
        """R mini-batch steps."""
        w = task.descended(w, self.lr)
        return private, w

    def merge(self, kept: Kept, ids: Ids, ups: Stack) -> tuple[Rows, Tensor, Tensor, Tensor, Tensor]:
        """Learn the graph where it is time; then one Laplacian step at the sampled clients."""
        W, a, done, start, worked = kept
        done, worked = done + 1, worked.index_fill(0, ids, True)
        if self._learns(int(done)):
            a = self._learned(W.index_copy(0, ids, ups), worked, start)
        weights, step = DenseWeights(a), self.coupling.step
        if self.mixing == "implicit":
            mixed = by_factors(weights, ups, step, ids, W)
        else:
            mixed = Graph(None, weights).mix_(ups, step, ids, W)
        return Rows(ids, mixed), a, done, start, worked

    def _learns(self, done: int) -> bool:
        past = done - self.warmup
        return past == 0 or (past > 0 and self.every > 0 and past % self.every == 0)

    def _given(self) -> Square:
        return np.asarray(self.graph.weights.matrix().toarray())

    def _learned(
        self, W: Everyone, worked: Bool[Tensor, "vertex"], start: One
    ) -> Float[Tensor, "vertex vertex"]:
        """Weights with the given ρ: learned between those that have worked, given elsewhere."""
        at = worked.nonzero().flatten()
        places, clients = at.cpu().numpy(), self.graph.clients
        names = None if clients is None else [clients[place] for place in places]
        a = self._given()
        share = self.graph.rho / len(W)  # the weight of a complete graph with the given ρ
        a[np.ix_(places, places)] = share * learned_weights(
            W[at], names, self.learner, self.nearest, start[0]
        )
        return torch.from_numpy(share * scaled(a)).to(W)

    @staticmethod
    def learned(kept: Kept, clients: Sequence[str] | None = None) -> Graph:
        """The graph that the server has come to."""
        return Graph.from_matrix(kept[1], clients)

    def penalty(self, kept: Kept, private: None) -> Float[Tensor, ""]:
        """(η/2) tr(WᵀLW)."""
        return self.coupling.eta / 2 * Graph(None, DenseWeights(kept[1])).smoothness(kept[0])

    def personal(self, kept: Kept, private: None, clients: int) -> Stack:
        """Each client's own model."""
        return kept[0]
