"""Ditto: a global model, and personal models that are pulled to it."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from fedlap.algorithms.fedavg import CountedModels, average_by_count
from fedlap.algorithms.interface import GlobalModel, Ids, Kind, Steadiness, check_local_work
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

    kind: ClassVar[Kind] = "personal"
    steady: ClassVar[Steadiness] = "round"
    citation: ClassVar[str] = (
        "T. Li, S. Hu, A. Beirami and V. Smith. Ditto: Fair and Robust Federated Learning Through "
        "Personalization. ICML, 2021."
    )

    def __post_init__(self) -> None:
        check_local_work("ditto", self.lr, self.local_steps, self.local_epochs)
        check_number("proximal", self.proximal, zero=True, scope="ditto")

    def init(self, start: Stack) -> tuple[GlobalModel, Stack]:
        """Start the global model at the mean of the starts, and each personal model at its client's start."""
        return start.mean(0, keepdim=True), start.clone()

    def send(self, w: GlobalModel, ids: Ids) -> Stack:
        """Send the global model."""
        return w.expand(len(ids), -1)

    def local(self, v: Stack, received: Stack, task: Task) -> tuple[Stack, CountedModels]:
        """Run R steps on both models; store the personal one, send the other with the row count."""
        w = received.clone()
        for batch in task.batches():
            active = len(batch.x)
            pull = v[:active] - received[:active]
            w = task.step(w, batch, self.lr)
            v = task.step(v, batch, self.lr)
            v[:active] -= self.lr * self.proximal * pull
        return v, (w, task.count)

    def merge(self, w: GlobalModel, ids: Ids, ups: CountedModels) -> GlobalModel:
        """Average the clients' models, weighted by their row counts."""
        return average_by_count(ups)

    def penalty(self, w: GlobalModel, v: Stack) -> Float[Tensor, ""]:
        """Return (λ/2) Σ_k ‖v_k − w‖²."""
        return self.proximal / 2 * (v.double() - w.double()).square().sum()

    def personal_models(self, w: GlobalModel, v: Stack, clients: int) -> Stack:
        """Return v_k of each client."""
        return v
