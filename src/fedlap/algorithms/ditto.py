"""Ditto: one model, and personal models that are held near it."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from fedlap.algorithms.fedavg import Counted, mean
from fedlap.algorithms.interface import Ids, Kind, One, Steadiness, check_work
from fedlap.algorithms.task import Stack, Task
from fedlap.errors import real


@dataclass(frozen=True)
class Ditto:
    """Ditto (T. Li et al. 2021, Algorithm 1): FedAvg, and beside it a personal model v_k at each client.

    w_k ← w                                                  at each sampled client k, told w
    w_k ← w_k − μ ∇F̃_k(w_k)                                 R times, as FedAvg does
    v_k ← v_k − μ (∇F̃_k(v_k) + λ (v_k − w))                 R times, on the same mini-batches
    w ← Σ_k n_k w_k / Σ_k n_k                                at the server, as FedAvg does

    v_k never leaves the client and is what it is scored with. As J counts them, personal models descend on
    Σ_k F_k(v_k) + (λ/2)‖v_k − w‖².

    proximal: λ, how closely personal models are held to w; 0.1, which is in both sets that the paper's
        clients choose from ({0.05, 0.1, 0.2} under strong attacks, {0.1, 1, 2} otherwise).
    lr: μ, the length of both local steps; 0.03 as for every method here.
    local_steps: R mini-batch steps a round (5 where neither is given), or …
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
        check_work("ditto", self.lr, self.local_steps, self.local_epochs)
        real("proximal", self.proximal, zero=True, scope="ditto")

    def begin(self, start: Stack) -> tuple[One, Stack]:
        """One model, the mean of the starts; each client's personal model begins at its own start."""
        return start.mean(0, keepdim=True), start.clone()

    def send(self, w: One, ids: Ids) -> Stack:
        """The model."""
        return w.expand(len(ids), -1)

    def local(self, v: Stack, told: Stack, task: Task) -> tuple[Stack, Counted]:
        """R steps of both models; the personal one is kept, the other is sent with the number of rows."""
        w = told.clone()
        for batch in task.batches():
            active = len(batch.x)
            back = v[:active] - told[:active]
            w = task.descend(w, batch, self.lr)
            v = task.descend(v, batch, self.lr)
            v[:active] -= self.lr * self.proximal * back
        return v, (w, task.count)

    def merge(self, w: One, ids: Ids, ups: Counted) -> One:
        """The count-weighted mean."""
        return mean(ups)

    def penalty(self, w: One, v: Stack) -> Float[Tensor, ""]:
        """(λ/2) Σ_k ‖v_k − w‖²."""
        return self.proximal / 2 * (v.double() - w.double()).square().sum()

    def personal(self, w: One, v: Stack, clients: int) -> Stack:
        """v_k of each client."""
        return v
