"""FedAvg and FedProx: one model, the mean of what sampled clients made of it."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from fedlap.algorithms.interface import Ids, Kind, One, Steadiness, check_work
from fedlap.algorithms.task import Stack, Task
from fedlap.errors import real

Counted = tuple[Stack, Float[Tensor, "client 1"]]  # models, and how many rows each was trained on


def mean(ups: Counted) -> One:
    """Σ n_k w_k / Σ n_k."""
    w, count = ups
    return (count * w).sum(0, keepdim=True) / count.sum()


@dataclass(frozen=True)
class FedAvg:
    """FedAvg (McMahan et al. 2017, Algorithm 1): the count-weighted mean of the sampled clients' models.

    w_k ← w                                     at each sampled client k
    w_k ← w_k − μ ∇F̃_k(w_k)                    R times
    w ← Σ_k n_k w_k / Σ_k n_k                   at the server, over the sampled clients, n_k rows each

    lr: μ, the length of a local step; 0.03 as for every method here, not from the paper, which tunes it.
    local_steps: R mini-batch steps a round (5 where neither is given), or …
    local_epochs: … R passes over the client's rows (the paper's E, 1 to 20 there).
    """

    lr: float = 0.03
    local_steps: int | None = None
    local_epochs: int | None = None

    kind: ClassVar[Kind] = "one model"
    steady: ClassVar[Steadiness] = "round"
    citation: ClassVar[str] = (
        "H. B. McMahan, E. Moore, D. Ramage, S. Hampson and B. Agüera y Arcas. Communication-Efficient "
        "Learning of Deep Networks from Decentralized Data. AISTATS, 2017."
    )

    def __post_init__(self) -> None:
        check_work("fedavg", self.lr, self.local_steps, self.local_epochs)

    def begin(self, start: Stack) -> tuple[One, None]:
        """One model; where clients would start apart, their mean."""
        return start.mean(0, keepdim=True), None

    def send(self, w: One, ids: Ids) -> Stack:
        """The model."""
        return w.expand(len(ids), -1)

    def local(self, private: None, w: Stack, task: Task) -> tuple[None, Counted]:
        """R mini-batch steps; the model and the number of rows are sent."""
        w = task.descended(w, self.lr)
        return private, (w, task.count)

    def merge(self, w: One, ids: Ids, ups: Counted) -> One:
        """The count-weighted mean."""
        return mean(ups)

    def personal(self, w: One, private: None, clients: int) -> Stack:
        """The one model, at every client."""
        return w.expand(clients, -1)


@dataclass(frozen=True)
class FedProx:
    """FedProx (Li et al. 2020, Algorithm 2): FedAvg whose clients are kept near the model they were told.

    w_k ← w                                                  at each sampled client k
    w_k ← w_k − μ (∇F̃_k(w_k) + λ (w_k − w))                 R times
    w ← Σ_k n_k w_k / Σ_k n_k                                at the server, as FedAvg does

    proximal: λ, the weight of (λ/2)‖w_k − w‖² (the paper's μ, tuned there in {0.001, 0.01, 0.1, 1}).
    lr: μ, the length of a local step; 0.03 as for every method here.
    local_steps: R mini-batch steps a round (5 where neither is given), or …
    local_epochs: … R passes over the client's rows (20 in the paper).
    """

    proximal: float = 0.01
    lr: float = 0.03
    local_steps: int | None = None
    local_epochs: int | None = None

    kind: ClassVar[Kind] = "one model"
    steady: ClassVar[Steadiness] = "round"
    citation: ClassVar[str] = (
        "T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar and V. Smith. Federated Optimization in "
        "Heterogeneous Networks. MLSys, 2020."
    )

    def __post_init__(self) -> None:
        check_work("fedprox", self.lr, self.local_steps, self.local_epochs)
        real("proximal", self.proximal, zero=True, scope="fedprox")

    def begin(self, start: Stack) -> tuple[One, None]:
        """One model; where clients would start apart, their mean."""
        return start.mean(0, keepdim=True), None

    def send(self, w: One, ids: Ids) -> Stack:
        """The model."""
        return w.expand(len(ids), -1)

    def local(self, private: None, told: Stack, task: Task) -> tuple[None, Counted]:
        """R steps along the gradient and back towards what was told."""
        w = task.pulled(told.clone(), self.lr, told, self.lr * self.proximal)
        return private, (w, task.count)

    def merge(self, w: One, ids: Ids, ups: Counted) -> One:
        """The count-weighted mean."""
        return mean(ups)

    def personal(self, w: One, private: None, clients: int) -> Stack:
        """The one model, at every client."""
        return w.expand(clients, -1)
