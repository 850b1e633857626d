"""Per-FedAvg: a global model from which one gradient step leads to each client's model."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from fedlap.algorithms.interface import Traits, check_choice, check_local_work
from fedlap.algorithms.local_updates import first_order_maml, maml
from fedlap.algorithms.server_state import Ids, SharedModel
from fedlap.algorithms.task import Task
from fedlap.errors import check_number
from fedlap.models.model import Stack


@dataclass(frozen=True)
class PerFedAvg:
    """Per-FedAvg (Fallah et al. 2020, Algorithm 1): FedAvg on the losses after one gradient step per client.

    min_w 1/N Σ_k F_k(w − α ∇F_k(w))                         the problem
    w_k ← w                                                  at each sampled client k
    w̃ ← w_k − α ∇F̃_k(w_k; D)                                R times, with new mini-batches D, D′, D″,
    w_k ← w_k − μ (I − α ∇²F̃_k(w_k; D″)) ∇F̃_k(w̃; D′)       then this
    w ← 1/S Σ_k w_k                                          at the server, over the S sampled clients

    The form "hessian" is as above; "first-order" replaces I − α∇²F̃_k by I and needs no D″.

    The personal model is w − α ∇F_k(w), over all training rows of the client and no others.

    A step uses the next two mini-batches of the round (three with the Hessian), all of them the client's full
    rows if batch = "all". A round therefore draws twice (three times) as many mini-batches as FedAvg's, for
    the same number of steps.

    form: "first-order", one of the paper's two cheaper forms, or "hessian", Algorithm 1 unchanged.
    adapt_lr: α, the length of the adaptation step; 0.03, like lr (not from the paper). At 0 the method is
        FedAvg with equal counts, on D′ alone.
    lr: μ, the length of a local step (β in the paper); 0.03 as for every method here.
    local_steps: R steps per round (5 if neither is given; the paper's τ), or …
    local_epochs: … as many steps as R passes over the client's rows have mini-batches.
    """

    form: Literal["first-order", "hessian"] = "first-order"
    adapt_lr: float = 0.03
    lr: float = 0.03
    local_steps: int | None = None
    local_epochs: int | None = None

    traits: ClassVar[Traits] = Traits("personal", static="round")
    citation: ClassVar[str] = (
        "A. Fallah, A. Mokhtari and A. Ozdaglar. Personalized Federated Learning with Theoretical "
        "Guarantees: A Model-Agnostic Meta-Learning Approach. NeurIPS, 2020."
    )

    def __post_init__(self) -> None:
        check_choice("form", self.form, ("first-order", "hessian"), "perfedavg")
        check_local_work("perfedavg", self.lr, self.local_steps, self.local_epochs)
        check_number("adapt_lr", self.adapt_lr, zero=True, scope="perfedavg")

    @property
    def batches_per_step(self) -> int:
        """Two mini-batches, D and D′, and a third, D″, for the Hessian."""
        return 3 if self.form == "hessian" else 2

    def init_server(self, start: Stack) -> SharedModel:
        """Start the global model at the mean of the clients' start models."""
        return SharedModel.average(start)

    def init_clients(self, start: Stack, counts: Tensor) -> None:
        """Store nothing at the clients."""

    def send(self, server: SharedModel, ids: Ids) -> Stack:
        """Send the global model."""
        return server.copies(len(ids))

    def local(self, private: None, w: Stack, task: Task) -> tuple[None, Stack]:
        """Run R steps on the loss after adaptation; send the model."""
        update = first_order_maml if self.form == "first-order" else maml
        return private, task.run(update, w, adapt_lr=self.adapt_lr, lr=self.lr)

    def merge(self, server: SharedModel, ids: Ids, w: Stack) -> SharedModel:
        """Average the clients' models with equal weights."""
        return SharedModel.average(w)

    def personal_models(self, server: SharedModel, private: None, clients: int) -> Stack:
        """Return the global model, before adaptation, for every client."""
        return server.copies(clients)

    def adapt(self, w: Stack, task: Task) -> Stack:
        """Take one gradient step over all training rows of each client."""
        return w - self.adapt_lr * task.full_gradient(w)
