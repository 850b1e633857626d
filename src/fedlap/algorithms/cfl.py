"""CFL: FedAvg in clusters that the server splits where clients' updates contradict each other."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from scipy.cluster.hierarchy import cut_tree, linkage
from torch import Tensor

from fedlap.algorithms.fedavg import CountedModels
from fedlap.algorithms.interface import Traits, check_local_work, check_share
from fedlap.algorithms.local_updates import sgd
from fedlap.algorithms.server_state import ClientTable, GatheredRows, Ids
from fedlap.algorithms.task import ClientScalars, Task
from fedlap.models.model import Stack


class CFLServer(NamedTuple):
    """The state of the clusters.

    models: the model of each client's cluster. updates, counts: each client's last update and row count.
    clusters: each client's cluster. trained: who has sent an update. largest: the largest norm of a mean
    update so far.
    """

    models: ClientTable
    updates: ClientTable
    counts: ClientScalars
    clusters: Int64[Tensor, "client"]
    trained: Bool[Tensor, "client"]
    largest: Float[Tensor, ""]


@dataclass(frozen=True)
class CFL:
    """CFL (Sattler, Müller and Samek 2020, Algorithm 3): clusters, split by the cosine of clients' updates.

    Δ_k ← w_k − θ_c, with w_k ← w_k − μ ∇F̃_k(w_k)           R times from θ_c, at each sampled client k of c
    θ_c ← θ_c + Σ_k n_k Δ_k / Σ_k n_k                        at the server, over the sampled clients of c

    All clients start in one cluster. Before averaging, a cluster is split if its mean update is small while
    an update is large, ‖Σ n_k Δ_k / Σ n_k‖ < ε₁ and max ‖Δ_k‖ > ε₂: into the two parts whose largest cosine
    between them, max cos(Δ_k, Δ_ℓ), is smallest.

    ε₁ and ε₂ are shares of the largest norm of a cluster's mean update in any round so far, by the paper's
    rule (ε₁ near a tenth of it, ε₂ from ε₁ to ten times ε₁). The paper's additional test of the cosine
    between both parts needs bounds on noise that nobody knows; it is left out, as in the published code. In
    the paper all clients train in every round; if clients are sampled, the test uses the last update of every
    member, and a cluster is split only when all its members have sent one.

    split_below: ε₁ as a share (0.1).
    split_above: ε₂ as a share (0.4, as 1.6 to 0.4 in the published code's ε₂ to ε₁).
    lr: μ, the length of a local step; 0.03 as for every method here.
    local_steps: R mini-batch steps per round (5 if neither is given), or …
    local_epochs: … R passes over the client's rows.
    """

    split_below: float = 0.1
    split_above: float = 0.4
    lr: float = 0.03
    local_steps: int | None = None
    local_epochs: int | None = None

    traits: ClassVar[Traits] = Traits("personal", static="local")
    citation: ClassVar[str] = (
        "F. Sattler, K.-R. Müller and W. Samek. Clustered Federated Learning: Model-Agnostic Distributed "
        "Multitask Optimization Under Privacy Constraints. IEEE TNNLS, 2020."
    )

    def __post_init__(self) -> None:
        check_local_work("cfl", self.lr, self.local_steps, self.local_epochs)
        check_share("split_below", self.split_below, zero=True, scope="cfl")
        check_share("split_above", self.split_above, zero=True, scope="cfl")

    def init_server(self, start: Stack) -> CFLServer:
        """Start with one cluster, at the mean of the clients' start models."""
        return CFLServer(
            ClientTable(start.mean(0, keepdim=True).repeat(len(start), 1)),
            ClientTable(torch.zeros_like(start)),
            start.new_zeros(len(start), 1),
            torch.zeros(len(start), dtype=torch.int64, device=start.device),
            torch.zeros(len(start), dtype=torch.bool, device=start.device),
            start.new_zeros(()),
        )

    def init_clients(self, start: Stack, counts: Tensor) -> None:
        """Store nothing at the clients."""

    def send(self, server: CFLServer, ids: Ids) -> GatheredRows:
        """Send each sampled client the model of its cluster."""
        return server.models.rows(ids)

    def local(self, private: None, received: Stack, task: Task) -> tuple[None, CountedModels]:
        """Run R mini-batch steps; send the update and the row count."""
        return private, CountedModels(task.run(sgd, received, lr=self.lr) - received, task.count)

    def merge(self, server: CFLServer, ids: Ids, up: CountedModels) -> CFLServer:
        """Split clusters whose updates contradict each other, and average the updates of each cluster."""
        updates = server.updates.values.index_copy(0, ids, up.models)
        counts, trained = server.counts.index_copy(0, ids, up.counts), server.trained.index_fill(0, ids, True)
        clusters, largest = server.clusters.clone(), server.largest
        for cluster in clusters.unique().tolist():
            members = (clusters == cluster).nonzero().flatten()
            if bool(trained[members].all()):
                mean = CountedModels(updates[members], counts[members]).average().norm()
                largest = torch.maximum(largest, mean)
                longest = updates[members].norm(dim=1).max()
                if mean < self.split_below * largest and longest > self.split_above * largest:
                    clusters[members[split_by_cosine(updates[members])]] = int(clusters.max()) + 1
        changes = torch.zeros_like(updates)
        for cluster in clusters[ids].unique().tolist():
            sampled = clusters[ids] == cluster
            changes[clusters == cluster] = CountedModels(up.models[sampled], up.counts[sampled]).average()
        everyone = torch.arange(len(updates), device=ids.device)
        models = server.models.with_rows(everyone, server.models.values + changes)
        rows = server.updates.with_rows(ids, up.models)
        return CFLServer(models, rows, counts, clusters, trained, largest)

    def personal_models(self, server: CFLServer, private: None, clients: int) -> Stack:
        """Return the model of each client's cluster."""
        return server.models.values


def split_by_cosine(updates: Float[Tensor, "member param"]) -> Bool[Tensor, "member"]:
    """Return one of two parts: those between which the largest cosine of two updates is smallest.

    Single linkage joins the two parts with the largest cosine between them until two parts are left.
    """
    if len(updates) < 2:
        return torch.zeros(len(updates), dtype=torch.bool, device=updates.device)
    direction = torch.nn.functional.normalize(updates.double(), dim=1)
    upper = torch.triu_indices(len(updates), len(updates), 1)
    distance = (1 - (direction @ direction.mT).cpu()[upper[0], upper[1]]).clamp_min(0)
    parts = cut_tree(linkage(distance.numpy(), "single"), 2).flatten()
    return torch.from_numpy(parts == 1).to(updates.device)
