"""FedRep: shared first layers, and personal last layers that are trained first."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedlap.algorithms.interface import Traits, check_local_work
from fedlap.algorithms.layers import BaseStack, HeadStack, count_head_parameters
from fedlap.algorithms.local_updates import block_sgd
from fedlap.algorithms.server_state import Ids, SharedModel
from fedlap.algorithms.task import Task
from fedlap.data.roster import Roster
from fedlap.errors import check_integer
from fedlap.models import Model
from fedlap.models.model import Stack


@dataclass(frozen=True)
class FedRep:
    """FedRep (Collins et al. 2021, Algorithm 1): like FedPer, but the head is trained before the base.

    b_k ← b                                                  at each sampled client k
    h_k ← h_k − μ ∇_h F̃_k(b_k, h_k)                         R times, with the received base
    b_k ← b_k − μ ∇_b F̃_k(b_k, h_k)                         R times, with the new head
    b ← 1/S Σ_k b_k                                          at the server, over the S sampled clients

    Both passes use the same R mini-batches, so that a round computes twice as many gradients as FedPer's. In
    the paper the head takes more steps than the base (one step in the analysis, 10 epochs against 1 to 5 in
    experiments). The head h_k, a model's last layers, stays with the client; layers are counted as in FedPer.
    A client is scored with (b, h_k) at the server's b.

    personal_layers: number of layers in the head (1, as in the paper's experiments).
    lr: μ, the length of a local step; 0.03 as for every method here.
    local_steps: R mini-batches per round (5 if neither is given), or …
    local_epochs: … the mini-batches of R passes over the client's rows.
    """

    personal_layers: int = 1
    lr: float = 0.03
    local_steps: int | None = None
    local_epochs: int | None = None
    _head: int = field(default=0, repr=False)  # number of parameters in the head, set by `bind`

    traits: ClassVar[Traits] = Traits("personal", static="round")
    citation: ClassVar[str] = (
        "L. Collins, H. Hassani, A. Mokhtari and S. Shakkottai. Exploiting Shared Representations for "
        "Personalized Federated Learning. ICML, 2021."
    )

    def __post_init__(self) -> None:
        check_local_work("fedrep", self.lr, self.local_steps, self.local_epochs)
        check_integer("personal_layers", self.personal_layers, 0, scope="fedrep")

    def bind(self, roster: Roster, model: Model) -> "FedRep":
        """Return the method for the layers of this model."""
        return replace(self, _head=count_head_parameters(model, self.personal_layers, "fedrep"))

    def init_server(self, start: Stack) -> SharedModel:
        """Start the base at the mean of the clients' start models."""
        return SharedModel.average(start[:, : start.shape[1] - self._head])

    def init_clients(self, start: Stack, counts: Tensor) -> HeadStack:
        """Start each head at its client's start."""
        return start[:, start.shape[1] - self._head :].clone()

    def send(self, server: SharedModel, ids: Ids) -> BaseStack:
        """Send the base."""
        return server.copies(len(ids))

    def local(self, h: HeadStack, b: BaseStack, task: Task) -> tuple[HeadStack, BaseStack | None]:
        """Train the head, then the base; store the head, send the base unless it is empty."""
        size = b.shape[1]
        w = task.run(block_sgd, torch.cat([b, h], 1), lr=self.lr, first=size, last=size + h.shape[1])
        if size:
            w = task.run(block_sgd, w, lr=self.lr, first=0, last=size)
        return w[:, size:].clone(), w[:, :size].clone() if size else None

    def merge(self, server: SharedModel, ids: Ids, b: BaseStack | None) -> SharedModel:
        """Average the bases with equal weights."""
        return server if b is None else SharedModel.average(b)

    def personal_models(self, server: SharedModel, h: HeadStack, clients: int) -> Stack:
        """Return the base with each client's head."""
        return torch.cat([server.copies(clients), h], 1)
