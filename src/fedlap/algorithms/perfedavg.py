"""Per-FedAvg: one model from which a gradient step makes each client's own."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedlap.algorithms.interface import Ids, Kind, One, Steadiness, check_work
from fedlap.algorithms.task import Stack, Task
from fedlap.errors import InputError, real


@dataclass(frozen=True)
class PerFedAvg:
    """Per-FedAvg (Fallah et al. 2020, Algorithm 1): FedAvg on the losses after a client's own gradient step.

    min_w 1/N Σ_k F_k(w − α ∇F_k(w))                         the problem
    w_k ← w                                                  at each sampled client k
    w̃ ← w_k − α ∇F̃_k(w_k; D)                                R times, with fresh mini-batches D, D′, D″,
    w_k ← w_k − μ (I − α ∇²F̃_k(w_k; D″)) ∇F̃_k(w̃; D′)       then this
    w ← 1/S Σ_k w_k                                          at the server, over the S sampled clients

    The form "hessian" is this; "first-order" takes I for I − α∇²F̃_k and needs no D″.

    The personal model is w − α ∇F_k(w), over all training rows of the client and no others.

    A step takes the next two mini-batches of the round (three with the Hessian), all of them the client's
    full rows where batch = "all". So a round draws twice (three times) the mini-batches of FedAvg's, and
    makes as many steps.

    form: "first-order", one of the paper's two cheaper forms, or "hessian", Algorithm 1 as it stands.
    adapt_lr: α, the length of the client's own step; 0.03, as lr (ours). At 0 this is
        FedAvg with equal counts, on D′ alone.
    lr: μ, the length of a local step (β in the paper); 0.03 as for every method here.
    local_steps: R steps a round (5 where neither is given; the paper's τ), or …
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
                f"form = {self.form!r}; it must be 'first-order' or 'hessian'",
                field="form",
                scope="perfedavg",
            )
        check_work("perfedavg", self.lr, self.local_steps, self.local_epochs)
        real("adapt_lr", self.adapt_lr, zero=True, scope="perfedavg")

    @property
    def batches_per_step(self) -> int:
        """D and D′, and D″ for the Hessian."""
        return 3 if self.form == "hessian" else 2

    def begin(self, start: Stack) -> tuple[One, None]:
        """One model; where clients would start apart, their mean."""
        return start.mean(0, keepdim=True), None

    def send(self, w: One, ids: Ids) -> Stack:
        """The model."""
        return w.expand(len(ids), -1)

    def local(self, private: None, w: Stack, task: Task) -> tuple[None, Stack]:
        """R steps along the gradient of the loss after adaptation."""
        w = w.clone()
        if self.form == "first-order":
            return private, task.ahead(w, self.adapt_lr, self.lr)
        for here, there, curved in zip(*[task.batches()] * 3, strict=True):  # one iterator, in turn
            reached = task.descend(w.clone(), here, self.adapt_lr)
            step = task.gradient(reached[: len(there.x)], there)[: len(curved.x)]
            step = step - self.adapt_lr * task.curvature(w[: len(step)], curved, step)
            w[: len(step)] -= self.lr * step
        return private, w

    def merge(self, w: One, ids: Ids, ups: Stack) -> One:
        """The mean, every client counting alike."""
        return ups.mean(0, keepdim=True)

    def personal(self, w: One, private: None, clients: int) -> Stack:
        """The one model, before it is adapted."""
        return w.expand(clients, -1)

    def adapt(self, w: Stack, task: Task) -> Stack:
        """A step along the gradient over all training rows of each client."""
        return w - self.adapt_lr * task.slope(w)
