"""AFL: one global model, trained for the worst mixture of clients."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fedlap.algorithms.adaptation import check_fine_tuning
from fedlap.algorithms.interface import Traits, check_local_work
from fedlap.algorithms.local_updates import sgd
from fedlap.algorithms.server_state import GlobalModel, Ids
from fedlap.algorithms.simplex import project_to_simplex
from fedlap.algorithms.task import ClientScalars, Task
from fedlap.errors import check_number
from fedlap.models.model import Stack

MixtureWeights = Float[Tensor, "everyone 1"]


class AFLServer(NamedTuple):
    """The global model, λ, the sum of the model over all rounds, and the number of rounds."""

    model: GlobalModel
    mixture: MixtureWeights
    total: GlobalModel
    rounds: Float[Tensor, ""]


class AFLUpload(NamedTuple):
    """The change of a client's model, and its loss at the model it received."""

    change: Stack
    loss: ClientScalars


@dataclass(frozen=True)
class AFL:
    """AFL (Mohri et al. 2019, Algorithm 1, Stochastic-AFL): min_w max_λ Σ_k λ_k F_k(w).

    A client is a domain; λ is a mixture of clients, a point of the simplex, uniform at the start.

    w_k ← w, then w_k ← w_k − μ ∇F̃_k(w_k)                   R times, at each sampled client k
    w⁺ ← w + N/S Σ_k λ_k (w_k − w)                            at the server, over the S sampled of N clients
    λ ← the nearest mixture to λ + γ N/S Σ_k F_k(w) e_k       with the losses at the w that was sent

    With R = 1 and all clients this is the paper's descent and ascent. Clients are scored with the mean of w
    over all rounds, for which the paper's guarantee holds.

    mixture_lr: γ, the length of a step of the mixture (0.01, not from the paper, which tunes it).
    lr: μ, the length of a local step; 0.03 as for every method here.
    local_steps: R mini-batch steps per round (5 if neither is given), or …
    local_epochs: … R passes over the client's rows.
    fine_tune_steps: full gradient steps of length μ that each client takes on its training rows, from the
        global model, before it is scored; they change neither training nor the wire.
    """

    mixture_lr: float = 0.01
    lr: float = 0.03
    local_steps: int | None = None
    local_epochs: int | None = None
    fine_tune_steps: int | None = None

    traits: ClassVar[Traits] = Traits("one model", static="round")
    citation: ClassVar[str] = "M. Mohri, G. Sivek and A. T. Suresh. Agnostic Federated Learning. ICML, 2019."

    def __post_init__(self) -> None:
        check_local_work("afl", self.lr, self.local_steps, self.local_epochs)
        check_fine_tuning("afl", self.fine_tune_steps)
        check_number("mixture_lr", self.mixture_lr, zero=True, scope="afl")

    def init_server(self, start: Stack) -> AFLServer:
        """Start with the mean of the clients' start models and a uniform mixture."""
        w = start.mean(0, keepdim=True)
        mixture = start.new_full((len(start), 1), 1 / len(start))
        return AFLServer(w, mixture, torch.zeros_like(w), w.new_zeros(()))

    def init_clients(self, start: Stack, counts: Tensor) -> None:
        """Store nothing at the clients."""

    def send(self, server: AFLServer, ids: Ids) -> Stack:
        """Send the global model."""
        return server.model.expand(len(ids), -1)

    def local(self, private: None, received: Stack, task: Task) -> tuple[None, AFLUpload]:
        """Run R mini-batch steps; send the change of the model and the loss of the received model."""
        w = task.run(sgd, received, lr=self.lr)
        return private, AFLUpload(w - received, task.loss(received))

    def merge(self, server: AFLServer, ids: Ids, up: AFLUpload) -> AFLServer:
        """Take a descent step on the model, weighted by the mixture, and an ascent step on the mixture."""
        w, mixture, total, rounds = server
        scale = len(mixture) / len(ids)
        w = w + scale * (mixture[ids] * up.change).sum(0, keepdim=True)
        mixture = project_to_simplex(mixture.index_add(0, ids, up.loss, alpha=self.mixture_lr * scale).mT).mT
        return AFLServer(w, mixture, total + w, rounds + 1)

    def personal_models(self, server: AFLServer, private: None, clients: int) -> Stack:
        """Return the mean of the global models of all rounds, for every client."""
        return (server.total / server.rounds).expand(clients, -1)
