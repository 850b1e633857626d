"""The network lasso: FedU with distances between neighbours in the place of their squares."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedlap.algorithms.coupling import Coupling
from fedlap.algorithms.interface import Everyone, Ids, Kind, Own, Rows, Steadiness, check_work
from fedlap.algorithms.local_work import LocalWork
from fedlap.algorithms.task import Stack, Task
from fedlap.data.federation import Federation
from fedlap.errors import real
from fedlap.graph import Graph
from fedlap.models import Model

BLOCK = 64  # vertices whose neighbours are looked at together


@dataclass(frozen=True)
class NetworkLasso:
    """The network lasso (Hallac et al. 2015) by FedU's Algorithm 1: neighbours pull with bounded force.

    J(W) = Σ_k F_k(w_k) + η Σ_{k<ℓ} a_kℓ h(‖w_k − w_ℓ‖)
    w_k ← w_k − μ ∇F̃_k(w_k)                                      R times, at each sampled client k
    w_k ← w_k − μRη Σ_ℓ a_kℓ (w_k − w_ℓ) / max(‖w_k − w_ℓ‖, ε)    at the server, all from the same old values

    h is the distance of the paper's problem, made smooth near zero (Huber): h(r) = r²/(2ε) up to ε and
    r − ε/2 from there on, so that mixing is a gradient step on J, stable where μRηρ/ε ≤ 2. A neighbour pulls
    with a_kℓ at most, however far it is, where in FedU it pulls with a_kℓ times the distance; so clusters
    come together and stay apart from each other. The paper's own solver is ADMM.

    Unsampled neighbours count at their last model. A round takes a distance for each neighbour of a sampled
    client, a block of clients at a time, and memory for one more model of each neighbour.

    graph: whose models should be alike, a_kℓ; a server vertex (F₀ = 0) takes part in every round.
    strength: η, how much; by default min(0.01, ε/(μRρ)), with ρ the largest eigenvalue of the Laplacian.
    smoothing: ε, the distance up to which neighbours pull as in FedU with strength η/ε (0.1, not from the
        paper; models trained alone on the embedded data are 1 to 4 apart).
    lr: μ, the length of a local step.
    local_steps: R mini-batch steps a round (5 where neither is given), or …
    local_epochs: … R passes over the client's rows.
    allow_unstable: take a strength with μRηρ/ε > 2, with which models nearer than ε may swing and not settle.
    """

    graph: Graph
    strength: float | None = None
    smoothing: float = 0.1
    lr: float = 0.03
    local_steps: int | None = None
    local_epochs: int | None = None
    allow_unstable: bool = False

    kind: ClassVar[Kind] = "multi-task"
    steady: ClassVar[Steadiness] = "local"
    citation: ClassVar[str] = (
        "D. Hallac, J. Leskovec and S. Boyd. Network Lasso: Clustering and Optimization in Large Graphs. "
        "KDD, 2015."
    )

    def __post_init__(self) -> None:
        check_work("lasso", self.lr, self.local_steps, self.local_epochs)
        real("smoothing", self.smoothing, zero=False, scope="lasso")
        self.coupling.check("lasso", self.allow_unstable)

    def suited(self, federation: Federation, model: Model) -> "NetworkLasso":
        """The same method with its graph in the federation's order of clients."""
        return replace(self, graph=self.graph.aligned(federation.clients))

    @property
    def coupling(self) -> Coupling:
        """The mixing of a round."""
        repeats = LocalWork.of(self.local_steps, self.local_epochs).repeats
        return Coupling(self.graph, self.strength, self.lr, repeats, self.smoothing)

    def begin(self, start: Stack) -> tuple[Tensor, None]:
        """The server keeps every model; its own vertex, if any, begins at their mean."""
        return (torch.cat([start, start.mean(0, keepdim=True)]) if self.graph.server else start.clone()), None

    def send(self, W: Everyone, ids: Ids) -> Own:
        """Each sampled client is told its own model."""
        return Own(W, ids)

    def local(self, private: None, w: Stack, task: Task) -> tuple[None, Stack]:
        """R mini-batch steps."""
        w = task.descended(w, self.lr)
        return private, w

    def merge(self, W: Everyone, ids: Ids, ups: Stack) -> Rows:
        """A step along the penalty's gradient, at the sampled clients."""
        if self.graph.server:
            ids, ups = torch.cat([ids, ids.new_full((1,), len(W) - 1)]), torch.cat([ups, W[-1:]])
        new = ids.new_full((len(W),), -1).index_copy(0, ids, torch.arange(len(ids), device=ids.device))
        pulls = []
        for some, w in zip(ids.split(BLOCK), ups.split(BLOCK), strict=True):
            near, weights = around(self.graph, some, W)
            place = new[near]  # of a neighbour among those that worked, or −1
            others = torch.where((place < 0).unsqueeze(1), W[near], ups[place])
            force = weights / distances(w, others).clamp_min(self.smoothing)
            pulls.append(force.sum(1, keepdim=True) * w - force @ others)
        return Rows(ids, ups - self.coupling.step * torch.cat(pulls))

    def penalty(self, W: Everyone, private: None) -> Float[Tensor, ""]:
        """η Σ_{k<ℓ} a_kℓ h(‖w_k − w_ℓ‖)."""
        W = W.double()
        total = W.new_zeros(())
        for ids in torch.arange(len(W), device=W.device).split(BLOCK):
            near, weights = around(self.graph, ids, W)
            apart = distances(W[ids], W[near])
            close = apart.clamp_max(self.smoothing)
            total = total + (weights * (close.square() / (2 * self.smoothing) + apart - close)).sum()
        return self.coupling.eta / 2 * total  # every pair was met twice

    def personal(self, W: Everyone, private: None, clients: int) -> Stack:
        """Each client's own model."""
        return W[:clients]


def around(graph: Graph, ids: Ids, W: Everyone) -> tuple[Int64[Tensor, "near"], Float[Tensor, "client near"]]:
    """The vertices that are neighbours of any of these, and the weights between, where W is."""
    each = [graph.neighbours(k) for k in ids.tolist()]
    near = np.unique(np.concatenate([places for places, _ in each]))
    weights = np.zeros((len(each), len(near)))
    for row, (places, values) in zip(weights, each, strict=True):
        row[np.searchsorted(near, places)] = values
    return torch.from_numpy(near).to(W.device, torch.int64), torch.from_numpy(weights).to(W)


def distances(
    w: Float[Tensor, "client param"], others: Float[Tensor, "near param"]
) -> Float[Tensor, "client near"]:
    """‖w_k − w_ℓ‖ without forming the differences, and without what products lose where models are close."""
    return torch.cdist(w, others, compute_mode="donot_use_mm_for_euclid_dist")
