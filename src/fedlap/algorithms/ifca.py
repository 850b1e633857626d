"""IFCA: several models, one per cluster; every client joins the cluster whose model suits its rows best."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fedlap.algorithms.interface import Traits, check_local_work
from fedlap.algorithms.local_updates import sgd
from fedlap.algorithms.server_state import Ids
from fedlap.algorithms.task import ClientScalars, Task
from fedlap.errors import check_integer, check_number
from fedlap.models.model import Stack
from fedlap.randomness import draws


class ClusterModels(NamedTuple):
    """One model per cluster."""

    models: Float[Tensor, "cluster param"]


class ClusterUpload(NamedTuple):
    """A client's model, and the number of the cluster that it has joined."""

    model: Stack
    cluster: ClientScalars


@dataclass(frozen=True)
class IFCA:
    """IFCA (Ghosh et al. 2020, Algorithm 1, model averaging): clients choose among k models in every round.

    j_k ← argmin_j F_k(θ_j)                                  at each sampled client k, which receives all θ_j
    w_k ← θ_j at j = j_k, w_k ← w_k − μ ∇F̃_k(w_k)           R times
    θ_j ← the mean of the w_k with j_k = j                   at the server; a model that nobody chose stays

    Every sampled client receives k models and computes k losses over all its training rows (the paper allows
    a mini-batch). A client is scored with the model of the cluster that it joined last, at first cluster 0.
    The paper starts at random models and takes the best of several restarts; here the models start around
    the common start model, at random distances of `spread` per parameter.

    clusters: k, the number of models (2).
    spread: standard deviation of the start models' parameters around the common start (0.1).
    cluster_seed: seed of the start models, which do not depend on the seed of training.
    lr: μ, the length of a local step; 0.03 as for every method here.
    local_steps: R mini-batch steps per round (5 if neither is given), or …
    local_epochs: … R passes over the client's rows.
    """

    clusters: int = 2
    spread: float = 0.1
    cluster_seed: int = 0
    lr: float = 0.03
    local_steps: int | None = None
    local_epochs: int | None = None

    traits: ClassVar[Traits] = Traits("personal", static="round")
    citation: ClassVar[str] = (
        "A. Ghosh, J. Chung, D. Yin and K. Ramchandran. An Efficient Framework for Clustered Federated "
        "Learning. NeurIPS, 2020."
    )

    def __post_init__(self) -> None:
        check_local_work("ifca", self.lr, self.local_steps, self.local_epochs)
        check_integer("clusters", self.clusters, 1, scope="ifca")
        check_number("spread", self.spread, zero=True, scope="ifca")
        check_integer("cluster_seed", self.cluster_seed, scope="ifca")

    def init_server(self, start: Stack) -> ClusterModels:
        """Start the models around the mean of the clients' start models."""
        ids = torch.arange(self.clusters)
        noise = draws(self.cluster_seed, "heterogeneity").normals(ids, 0, start.shape[1])
        return ClusterModels(start.mean(0, keepdim=True) + self.spread * noise.to(start))

    def init_clients(self, start: Stack, counts: Tensor) -> ClientScalars:
        """Start every client in cluster 0."""
        return start.new_zeros(len(start), 1)

    def send(self, server: ClusterModels, ids: Ids) -> Float[Tensor, "client cluster param"]:
        """Send the models of all clusters."""
        return server.models.expand(len(ids), -1, -1)

    def local(
        self, cluster: ClientScalars, models: Float[Tensor, "client cluster param"], task: Task
    ) -> tuple[ClientScalars, ClusterUpload]:
        """Join the cluster of the lowest training loss and train its model; send both."""
        losses = [task.loss(w.contiguous()) for w in models.unbind(1)]
        best = torch.cat(losses, 1).argmin(1, keepdim=True)
        w = models.take_along_dim(best.unsqueeze(2), 1).squeeze(1)
        return best.to(w), ClusterUpload(task.run(sgd, w, lr=self.lr), best.to(w))

    def merge(self, server: ClusterModels, ids: Ids, up: ClusterUpload) -> ClusterModels:
        """Average the models of each cluster's members with equal weights."""
        numbers = torch.arange(self.clusters, device=up.cluster.device).unsqueeze(1)
        members = (up.cluster.mT == numbers).to(up.model)
        size = members.sum(1, keepdim=True)
        means = members @ up.model / size.clamp_min(1)
        return ClusterModels(torch.where(size > 0, means, server.models))

    def personal_models(self, server: ClusterModels, cluster: ClientScalars, clients: int) -> Stack:
        """Return the model of the cluster that each client joined last."""
        return server.models[cluster.flatten().long()]
