"""Ditto: a global model, and personal models that are pulled to it."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from fedlap.algorithms.fedavg import CountedModels
from fedlap.algorithms.interface import Traits, check_local_work
from fedlap.algorithms.local_updates import sgd
from fedlap.algorithms.server_state import Ids, SharedModel
from fedlap.algorithms.task import Task
from fedlap.errors import check_number
from fedlap.models.model import Stack


@dataclass(frozen=True)
class Ditto:
    """Ditto (T. Li et al. 2021, Algorithm 1): FedAvg, plus a personal model v_k at each client.

    w_k ← w                                                  at each sampled client k
    w_k ← w_k − μ ∇F̃_k(w_k)                                 R times, as FedAvg does
    v_k ← v_k − μ (∇F̃_k(v_k) + λ (v_k − w))                 R times, on the same mini-batches
    w ← Σ_k n_k w_k / Σ_k n_k                                at the server, as FedAvg does

    v_k never leaves the client, which is scored with it. J counts the personal models, which descend on
    Σ_k F_k(v_k) + (λ/2)‖v_k − w‖².

    proximal: λ, the strength of the pull to w; 0.1, which is in both sets that the paper's clients choose
        from ({0.05, 0.1, 0.2} under strong attacks, {0.1, 1, 2} otherwise).
    lr: μ, the length of both local steps; 0.03 as for every method here.
    local_steps: R mini-batch steps per round (5 if neither is given), or …
    local_epochs: … R passes over the client's rows.
    """

    proximal: float = 0.1
    lr: float = 0.03
    local_steps: int | None = None
    local_epochs: int | None = None

    traits: ClassVar[Traits] = Traits("personal", static="round", merges="sum")
    citation: ClassVar[str] = (
        "T. Li, S. Hu, A. Beirami and V. Smith. Ditto: Fair and Robust Federated Learning Through "
        "Personalization. ICML, 2021."
    )

    def __post_init__(self) -> None:
        check_local_work("ditto", self.lr, self.local_steps, self.local_epochs)
        check_number("proximal", self.proximal, zero=True, scope="ditto")

    def init_server(self, start: Stack) -> SharedModel:
        """Start the global model at the mean of the clients' start models."""
        return SharedModel.average(start)

    def init_clients(self, start: Stack, counts: Tensor) -> Stack:
        """Start each personal model at its client's start."""
        return start.clone()

    def send(self, server: SharedModel, ids: Ids) -> Stack:
        """Send the global model."""
        return server.copies(len(ids))

    def local(self, v: Stack, received: Stack, task: Task) -> tuple[Stack, CountedModels]:
        """Run R steps on both models; store the personal one, send the other with the row count."""
        w = task.run(sgd, received, lr=self.lr)
        v = task.run(sgd, v, lr=self.lr, anchor=received, pull=self.lr * self.proximal)
        return v, CountedModels(w, task.count)

    def merge(self, server: SharedModel, ids: Ids, up: CountedModels) -> SharedModel:
        """Average the clients' models, weighted by their row counts."""
        return SharedModel(up.average())

    def penalty(self, server: SharedModel, v: Stack) -> Float[Tensor, ""]:
        """Return (λ/2) Σ_k ‖v_k − w‖²."""
        return self.proximal / 2 * (v.double() - server.model.double()).square().sum()

    def personal_models(self, server: SharedModel, v: Stack, clients: int) -> Stack:
        """Return v_k of each client."""
        return v
