"""pFedMe: a global model, and personal models from the Moreau envelopes of the clients' losses."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from fedlap.algorithms.interface import Traits, check_local_work
from fedlap.algorithms.local_updates import moreau
from fedlap.algorithms.server_state import Ids, SharedModel
from fedlap.algorithms.task import Task
from fedlap.errors import InputError, check_integer, check_number
from fedlap.models.model import Stack


@dataclass(frozen=True)
class PFedMe:
    """pFedMe (T. Dinh, Tran and Nguyen 2020, Algorithm 1): descent on the clients' Moreau envelopes.

    min_w 1/N Σ_k min_θ F_k(θ) + (λ/2)‖θ − w‖²               the problem
    w_k ← w,  θ_k ← w                                        at each sampled client k
    θ_k ← θ_k − ν (∇F̃_k(θ_k) + λ (θ_k − w_k))               K times on one mini-batch, and then
    w_k ← w_k − μλ (w_k − θ_k)                               both R times
    w ← (1 − β) w + β/S Σ_k w_k                              at the server, over the S sampled clients

    The paper leaves the inner solver open. Here, as in its published code, the solver starts at w and, within
    the client's work of a round, continues from the last θ_k: the next problem differs only by a mini-batch
    and a short step of w_k, so that K steps come closer to its solution than from w_k.

    θ_k is the personal model, which never leaves the client: the one of its last local work, and before that
    its start. In the paper all clients train in every round and the server receives S of their models. Here,
    as in every method, only sampled clients train: w is equal, and so is θ_k if S = N.

    regularisation: λ, the strength of the pull of a personal model to w (15, as in its published commands).
    inner_steps: K, steps of the inner solver on each mini-batch (5, as in its published commands).
    inner_lr: ν, their length. The solver is stable if ν(λ + L) < 2, with L the largest curvature of F̃_k;
        νλ ≥ 2 is rejected. 0.03, not from the paper, whose published commands use 0.1 and 0.09 for MNIST.
    server_mix: β, the server's step towards the mean and, above 1, past it (1, plain averaging).
    lr: μ, the length of a step on the envelope (η in the paper); 0.03 as for every method here.
    local_steps: R mini-batches per round (5 if neither is given; 20 in its published commands), or …
    local_epochs: … the mini-batches of R passes over the client's rows.
    """

    regularisation: float = 15.0
    inner_steps: int = 5
    inner_lr: float = 0.03
    server_mix: float = 1.0
    lr: float = 0.03
    local_steps: int | None = None
    local_epochs: int | None = None

    traits: ClassVar[Traits] = Traits("personal", static="round")
    citation: ClassVar[str] = (
        "C. T. Dinh, N. H. Tran and T. D. Nguyen. Personalized Federated Learning with Moreau Envelopes. "
        "NeurIPS, 2020."
    )

    def __post_init__(self) -> None:
        check_local_work("pfedme", self.lr, self.local_steps, self.local_epochs)
        check_number("regularisation", self.regularisation, zero=False, scope="pfedme")
        check_integer("inner_steps", self.inner_steps, 1, scope="pfedme")
        check_number("inner_lr", self.inner_lr, zero=False, scope="pfedme")
        check_number("server_mix", self.server_mix, zero=False, scope="pfedme")
        if self.inner_lr * self.regularisation >= 2:
            raise InputError(
                f"inner_lr·regularisation = {self.inner_lr:g}·{self.regularisation:g} = "
                f"{self.inner_lr * self.regularisation:.4g}, but the inner solver is stable only below 2; "
                f"use an inner_lr below {2 / self.regularisation:.4g}",
                scope="pfedme",
            )

    def init_server(self, start: Stack) -> SharedModel:
        """Start the global model at the mean of the clients' start models."""
        return SharedModel.average(start)

    def init_clients(self, start: Stack, counts: Tensor) -> Stack:
        """Start each personal model at its client's start."""
        return start.clone()

    def send(self, server: SharedModel, ids: Ids) -> Stack:
        """Send the global model."""
        return server.copies(len(ids))

    def local(self, private: Stack, w: Stack, task: Task) -> tuple[Stack, Stack]:
        """Run R steps on the envelope, each after K on the personal model; send w_k, store θ_k."""
        inner = {"inner_lr": self.inner_lr, "inner_steps": self.inner_steps}
        theta, w = task.run(moreau, w, lr=self.lr, regularisation=self.regularisation, **inner)
        return theta, w

    def merge(self, server: SharedModel, ids: Ids, w: Stack) -> SharedModel:
        """Step towards the mean of the clients' models, or past it."""
        mean = w.mean(0, keepdim=True)
        return SharedModel((1 - self.server_mix) * server.model + self.server_mix * mean)

    def penalty(self, server: SharedModel, theta: Stack) -> Float[Tensor, ""]:
        """Return (λ/2) Σ_k ‖θ_k − w‖², so that J is N times the paper's objective at these models."""
        return self.regularisation / 2 * (theta - server.model).square().sum()

    def personal_models(self, server: SharedModel, theta: Stack, clients: int) -> Stack:
        """Return θ_k of each client."""
        return theta
