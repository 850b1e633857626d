"""FedPer: shared first layers, and personal last layers at each client."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedlap.algorithms.fedavg import CountedModels
from fedlap.algorithms.interface import Traits, check_local_work
from fedlap.algorithms.layers import BaseStack, HeadStack, count_head_parameters
from fedlap.algorithms.local_updates import sgd
from fedlap.algorithms.server_state import Ids, SharedModel
from fedlap.algorithms.task import Task
from fedlap.data.roster import Roster
from fedlap.errors import check_integer
from fedlap.models import Model
from fedlap.models.model import Stack


@dataclass(frozen=True)
class FedPer:
    """FedPer (Arivazhagan et al. 2019, Algorithms 1 and 2): FedAvg of the first layers only.

    b_k ← b                                                  at each sampled client k
    (b_k, h_k) ← (b_k, h_k) − μ ∇F̃_k(b_k, h_k)              R times
    b ← Σ_k n_k b_k / Σ_k n_k                                at the server, n_k rows at client k

    The head h_k, a model's last layers, stays with the client; only the base b crosses the wire. A client is
    scored with (b, h_k) at the server's b. A layer is a submodule that holds parameters, in the order of the
    state_dict. If every layer is personal, like the one layer of a linear model, nothing is shared: b is
    empty, nothing crosses the wire, and every client trains alone.

    personal_layers: number of layers in the head (1; the paper tries 1 to 4); 0 is FedAvg.
    lr: μ, the length of a local step; 0.03 as for every method here.
    local_steps: R mini-batch steps per round (5 if neither is given), or …
    local_epochs: … R passes over the client's rows.
    """

    personal_layers: int = 1
    lr: float = 0.03
    local_steps: int | None = None
    local_epochs: int | None = None
    _head: int = field(default=0, repr=False)  # number of parameters in the head, set by `bind`

    traits: ClassVar[Traits] = Traits("personal", static="round", merges="sum")
    citation: ClassVar[str] = (
        "M. G. Arivazhagan, V. Aggarwal, A. K. Singh and S. Choudhary. Federated Learning with "
        "Personalization Layers. arXiv:1912.00818, 2019."
    )

    def __post_init__(self) -> None:
        check_local_work("fedper", self.lr, self.local_steps, self.local_epochs)
        check_integer("personal_layers", self.personal_layers, 0, scope="fedper")

    def bind(self, roster: Roster, model: Model) -> "FedPer":
        """Return the method for the layers of this model."""
        return replace(self, _head=count_head_parameters(model, self.personal_layers, "fedper"))

    def init_server(self, start: Stack) -> SharedModel:
        """Start the base at the mean of the clients' start models."""
        return SharedModel.average(start[:, : start.shape[1] - self._head])

    def init_clients(self, start: Stack, counts: Tensor) -> HeadStack:
        """Start each head at its client's start."""
        return start[:, start.shape[1] - self._head :].clone()

    def send(self, server: SharedModel, ids: Ids) -> BaseStack:
        """Send the base."""
        return server.copies(len(ids))

    def local(self, h: HeadStack, b: BaseStack, task: Task) -> tuple[HeadStack, CountedModels | None]:
        """Run R mini-batch steps on both; store the head, send the base and the count unless it is empty."""
        size = b.shape[1]
        w = task.run(sgd, torch.cat([b, h], 1), lr=self.lr)
        return w[:, size:].clone(), CountedModels(w[:, :size].clone(), task.count) if size else None

    def merge(self, server: SharedModel, ids: Ids, up: CountedModels | None) -> SharedModel:
        """Average the bases, weighted by their row counts."""
        return server if up is None else SharedModel(up.average())

    def personal_models(self, server: SharedModel, h: HeadStack, clients: int) -> Stack:
        """Return the base with each client's head."""
        return torch.cat([server.copies(clients), h], 1)
