"""Per-FedAvg: a global model from which one gradient step leads to each client's model."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedlap.algorithms.interface import GlobalModel, Ids, Kind, Steadiness, check_local_work
from fedlap.algorithms.task import Task
from fedlap.errors import InputError, check_number
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
    local_steps: R steps a round (5 if neither is given; the paper's τ), or …
    local_epochs: … as many steps as R passes over the client's rows have mini-batches.
    """

    form: Literal["first-order", "hessian"] = "first-order"
    adapt_lr: float = 0.03
    lr: float = 0.03
    local_steps: int | None = None
    local_epochs: int | None = None

    kind: ClassVar[Kind] = "personal"
    steady: ClassVar[Steadiness] = "round"
    citation: ClassVar[str] = (
        "A. Fallah, A. Mokhtari and A. Ozdaglar. Personalized Federated Learning with Theoretical "
        "Guarantees: A Model-Agnostic Meta-Learning Approach. NeurIPS, 2020."
    )

    def __post_init__(self) -> None:
        if self.form not in ("first-order", "hessian"):
            raise InputError(
                f"form = {self.form!r}; use 'first-order' or 'hessian'",
                field="form",
                scope="perfedavg",
            )
        check_local_work("perfedavg", self.lr, self.local_steps, self.local_epochs)
        check_number("adapt_lr", self.adapt_lr, zero=True, scope="perfedavg")

    @property
    def batches_per_step(self) -> int:
        """Two mini-batches, D and D′, and a third, D″, for the Hessian."""
        return 3 if self.form == "hessian" else 2

    def init(self, start: Stack) -> tuple[GlobalModel, None]:
        """Start the global model at the mean of the clients' start models."""
        return start.mean(0, keepdim=True), None

    def send(self, w: GlobalModel, ids: Ids) -> Stack:
        """Send the global model."""
        return w.expand(len(ids), -1)

    def local(self, private: None, w: Stack, task: Task) -> tuple[None, Stack]:
        """Run R steps on the loss after adaptation; send the model."""
        w = w.clone()
        if self.form == "first-order":
            return private, task.first_order_maml(w, self.adapt_lr, self.lr)
        for here, there, curved in zip(*[task.batches()] * 3, strict=True):  # one iterator
            reached = task.step(w.clone(), here, self.adapt_lr)
            step = task.gradient(reached[: len(there.x)], there)[: len(curved.x)]
            step = step - self.adapt_lr * task.curvature(w[: len(step)], curved, step)
            w[: len(step)] -= self.lr * step
        return private, w

    def merge(self, w: GlobalModel, ids: Ids, ups: Stack) -> GlobalModel:
        """Average the clients' models with equal weights."""
        return ups.mean(0, keepdim=True)

    def personal_models(self, w: GlobalModel, private: None, clients: int) -> Stack:
        """Return the global model, before adaptation, for every client."""
        return w.expand(clients, -1)

    def adapt(self, w: Stack, task: Task) -> Stack:
        """Take one gradient step over all training rows of each client."""
        return w - self.adapt_lr * task.full_gradient(w)
