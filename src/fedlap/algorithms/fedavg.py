"""FedAvg and FedProx: one global model, the mean of the models that sampled clients train."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from fedlap.algorithms.adaptation import check_fine_tuning
from fedlap.algorithms.interface import Traits, check_local_work
from fedlap.algorithms.local_updates import sgd
from fedlap.algorithms.server_state import GlobalModel, Ids, SharedModel
from fedlap.algorithms.task import ClientScalars, Task
from fedlap.errors import check_number
from fedlap.models.model import Stack


class CountedModels(NamedTuple):
    """Models, and the number of rows that each was trained on."""

    models: Stack
    counts: ClientScalars

    def average(self) -> GlobalModel:
        """Return Σ n_k w_k / Σ n_k."""
        return (self.counts * self.models).sum(0, keepdim=True) / self.counts.sum()

    def combine(self) -> "CountedModels":
        """Return one row that has the average of all rows and counts as much as all of them."""
        return CountedModels(self.average(), self.counts.sum(0, keepdim=True))


@dataclass(frozen=True)
class FedAvg:
    """FedAvg (McMahan et al. 2017, Algorithm 1): the count-weighted mean of the sampled clients' models.

    w_k ← w                                     at each sampled client k
    w_k ← w_k − μ ∇F̃_k(w_k)                    R times
    w ← Σ_k n_k w_k / Σ_k n_k                   at the server, over the sampled clients, n_k rows each

    lr: μ, the length of a local step; 0.03 as for every method here, not from the paper, which tunes it.
    local_steps: R mini-batch steps per round (5 if neither is given), or …
    local_epochs: … R passes over the client's rows (the paper's E, 1 to 20 there).
    fine_tune_steps: full gradient steps of length μ that each client takes on its training rows, from the
        global model, before it is scored; they change neither training nor the wire.
    """

    lr: float = 0.03
    local_steps: int | None = None
    local_epochs: int | None = None
    fine_tune_steps: int | None = None

    traits: ClassVar[Traits] = Traits("one model", static="round", merges="sum")
    citation: ClassVar[str] = (
        "H. B. McMahan, E. Moore, D. Ramage, S. Hampson and B. Agüera y Arcas. Communication-Efficient "
        "Learning of Deep Networks from Decentralized Data. AISTATS, 2017."
    )

    def __post_init__(self) -> None:
        check_local_work("fedavg", self.lr, self.local_steps, self.local_epochs)
        check_fine_tuning("fedavg", self.fine_tune_steps)

    def init_server(self, start: Stack) -> SharedModel:
        """Start the global model at the mean of the clients' start models."""
        return SharedModel.average(start)

    def init_clients(self, start: Stack, counts: Tensor) -> None:
        """Store nothing at the clients."""

    def send(self, server: SharedModel, ids: Ids) -> Stack:
        """Send the global model."""
        return server.copies(len(ids))

    def local(self, private: None, w: Stack, task: Task) -> tuple[None, CountedModels]:
        """Run R mini-batch steps; send the model and the row count."""
        return private, CountedModels(task.run(sgd, w, lr=self.lr), task.count)

    def merge(self, server: SharedModel, ids: Ids, up: CountedModels) -> SharedModel:
        """Average the clients' models, weighted by their row counts."""
        return SharedModel(up.average())

    def personal_models(self, server: SharedModel, private: None, clients: int) -> Stack:
        """Return the global model for every client."""
        return server.copies(clients)


@dataclass(frozen=True)
class FedProx:
    """FedProx (Li et al. 2020, Algorithm 2): FedAvg with clients pulled to the model they received.

    w_k ← w                                                  at each sampled client k
    w_k ← w_k − μ (∇F̃_k(w_k) + λ (w_k − w))                 R times
    w ← Σ_k n_k w_k / Σ_k n_k                                at the server, as FedAvg does

    The paper draws client k with probability n_k/Σn and takes the plain mean; here both are as in FedAvg.

    proximal: λ, the weight of (λ/2)‖w_k − w‖² (the paper's μ, tuned there in {0.001, 0.01, 0.1, 1}).
    lr: μ, the length of a local step; 0.03 as for every method here.
    local_steps: R mini-batch steps per round (5 if neither is given), or …
    local_epochs: … R passes over the client's rows (20 in the paper).
    fine_tune_steps: full gradient steps of length μ that each client takes on its training rows, from the
        global model, before it is scored; they change neither training nor the wire.
    """

    proximal: float = 0.01
    lr: float = 0.03
    local_steps: int | None = None
    local_epochs: int | None = None
    fine_tune_steps: int | None = None

    traits: ClassVar[Traits] = Traits("one model", static="round", merges="sum")
    citation: ClassVar[str] = (
        "T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar and V. Smith. Federated Optimization in "
        "Heterogeneous Networks. MLSys, 2020."
    )

    def __post_init__(self) -> None:
        check_local_work("fedprox", self.lr, self.local_steps, self.local_epochs)
        check_fine_tuning("fedprox", self.fine_tune_steps)
        check_number("proximal", self.proximal, zero=True, scope="fedprox")

    def init_server(self, start: Stack) -> SharedModel:
        """Start the global model at the mean of the clients' start models."""
        return SharedModel.average(start)

    def init_clients(self, start: Stack, counts: Tensor) -> None:
        """Store nothing at the clients."""

    def send(self, server: SharedModel, ids: Ids) -> Stack:
        """Send the global model."""
        return server.copies(len(ids))

    def local(self, private: None, received: Stack, task: Task) -> tuple[None, CountedModels]:
        """Run R steps pulled to the received model; send the model and the row count."""
        w = task.run(sgd, received, lr=self.lr, anchor=received, pull=self.lr * self.proximal)
        return private, CountedModels(w, task.count)

    def merge(self, server: SharedModel, ids: Ids, up: CountedModels) -> SharedModel:
        """Average the clients' models, weighted by their row counts."""
        return SharedModel(up.average())

    def personal_models(self, server: SharedModel, private: None, clients: int) -> Stack:
        """Return the global model for every client."""
        return server.copies(clients)
