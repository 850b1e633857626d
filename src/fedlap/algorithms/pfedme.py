"""pFedMe: one model, and personal models held near it by Moreau envelopes of the clients' losses."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from fedlap.algorithms.interface import Ids, Kind, One, Steadiness, check_work
from fedlap.algorithms.task import Stack, Task
from fedlap.errors import InputError, real, whole


@dataclass(frozen=True)
class PFedMe:
    """pFedMe (T. Dinh, Tran and Nguyen 2020, Algorithm 1): descent on the clients' Moreau envelopes.

    min_w 1/N Σ_k min_θ F_k(θ) + (λ/2)‖θ − w‖²               the problem
    w_k ← w,  θ_k ← w                                        at each sampled client k
    θ_k ← θ_k − ν (∇F̃_k(θ_k) + λ (θ_k − w_k))               K times on one mini-batch, and then
    w_k ← w_k − μλ (w_k − θ_k)                               both R times
    w ← (1 − β) w + β/S Σ_k w_k                              at the server, over the S sampled clients

    The paper leaves the inner solver open. Here, as in its published code, it starts at w and then goes on
    from the last θ_k within the client's work of the round: the next problem differs by a mini-batch and a
    short step of w_k only, and the K steps come closer than from w_k anew.

    θ_k is the personal model, which the client keeps to itself: that of its last work, and before any its
    start. In the paper all clients work in every round and the server hears S of them. Here, as in every
    method, only the sampled work: w is the same, and so is θ_k where S = N.

    regularisation: λ, how closely a personal model is held to w (15, as in its published commands).
    inner_steps: K, steps of the inner solver on each mini-batch (5, as in its published commands).
    inner_lr: ν, their length. The solver is stable where ν(λ + L) < 2, with L the largest curvature of F̃_k;
        νλ ≥ 2 is refused. 0.03, not from the paper, whose published commands take 0.1 and 0.09 for MNIST.
    server_mix: β, how far the server goes to the mean and, above 1, past it (1, plain averaging).
    lr: μ, the length of a step on the envelope (η in the paper); 0.03 as for every method here.
    local_steps: R mini-batches a round (5 where neither is given; 20 in its published commands), or …
    local_epochs: … the mini-batches of R passes over the client's rows.
    """

    regularisation: float = 15.0
    inner_steps: int = 5
    inner_lr: float = 0.03
    server_mix: float = 1.0
    lr: float = 0.03
    local_steps: int | None = None
    local_epochs: int | None = None

    kind: ClassVar[Kind] = "personal"
    steady: ClassVar[Steadiness] = "round"
    citation: ClassVar[str] = (
        "C. T. Dinh, N. H. Tran and T. D. Nguyen. Personalized Federated Learning with Moreau Envelopes. "
        "NeurIPS, 2020."
    )

    def __post_init__(self) -> None:
        check_work("pfedme", self.lr, self.local_steps, self.local_epochs)
        real("regularisation", self.regularisation, zero=False, scope="pfedme")
        whole("inner_steps", self.inner_steps, 1, scope="pfedme")
        real("inner_lr", self.inner_lr, zero=False, scope="pfedme")
        real("server_mix", self.server_mix, zero=False, scope="pfedme")
        if self.inner_lr * self.regularisation >= 2:
            raise InputError(
                f"inner_lr·regularisation = {self.inner_lr:g}·{self.regularisation:g} = "
                f"{self.inner_lr * self.regularisation:.4g}, and the inner solver is stable only below 2; "
                f"take an inner_lr below {2 / self.regularisation:.4g}",
                scope="pfedme",
            )

    def begin(self, start: Stack) -> tuple[One, Stack]:
        """One model, the mean of the starts; each client's personal model begins at its own start."""
        return start.mean(0, keepdim=True), start.clone()

    def send(self, w: One, ids: Ids) -> Stack:
        """The model."""
        return w.expand(len(ids), -1)

    def local(self, private: Stack, w: Stack, task: Task) -> tuple[Stack, Stack]:
        """R steps on the envelope, each after K on the personal model; w_k is sent, θ_k is kept."""
        w = w.clone()
        by, drag = self.inner_lr * self.regularisation, self.lr * self.regularisation
        theta = task.pulled(w.clone(), self.inner_lr, w, by, self.inner_steps, drag)
        return theta, w

    def merge(self, w: One, ids: Ids, ups: Stack) -> One:
        """Towards the mean of the clients' models, or past it."""
        return (1 - self.server_mix) * w + self.server_mix * ups.mean(0, keepdim=True)

    def penalty(self, w: One, theta: Stack) -> Float[Tensor, ""]:
        """(λ/2) Σ_k ‖θ_k − w‖², so that J is N times the paper's objective at these models."""
        return self.regularisation / 2 * (theta - w).square().sum()

    def personal(self, w: One, theta: Stack, clients: int) -> Stack:
        """θ_k of each client."""
        return theta
