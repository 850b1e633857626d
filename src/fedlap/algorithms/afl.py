"""AFL: one model that does well for the worst mixture of clients."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from fedlap.algorithms.interface import Ids, Kind, One, Steadiness, check_work
from fedlap.algorithms.task import Stack, Task
from fedlap.errors import real

Mixture = Float[Tensor, "everyone 1"]
Kept = tuple[One, Mixture, One, Float[Tensor, ""]]  # w, λ, the sum of all w so far, and how many they are


@dataclass(frozen=True)
class AFL:
    """AFL (Mohri et al. 2019, Algorithm 1, Stochastic-AFL): min_w max_λ Σ_k λ_k F_k(w).

    A client is a domain; λ is a mixture of clients, a point of the simplex, at first uniform.

    w_k ← w, then w_k ← w_k − μ ∇F̃_k(w_k)                   R times, at each sampled client k
    w⁺ ← w + N/S Σ_k λ_k (w_k − w)                            at the server, over the S sampled of N clients
    λ ← the nearest mixture to λ + γ N/S Σ_k F_k(w) e_k       with the losses at the model that was told

    With R = 1 and all clients this is the paper's descent and ascent. The mean of w over all rounds is what
    is scored, as the paper's guarantee is for it.

    mixture_lr: γ, the length of a step of the mixture (0.01, not from the paper, which tunes it).
    lr: μ, the length of a local step; 0.03 as for every method here.
    local_steps: R mini-batch steps a round (5 where neither is given), or …
    local_epochs: … R passes over the client's rows.
    """

    mixture_lr: float = 0.01
    lr: float = 0.03
    local_steps: int | None = None
    local_epochs: int | None = None

    kind: ClassVar[Kind] = "one model"
    steady: ClassVar[Steadiness] = "round"
    citation: ClassVar[str] = "M. Mohri, G. Sivek and A. T. Suresh. Agnostic Federated Learning. ICML, 2019."

    def __post_init__(self) -> None:
        check_work("afl", self.lr, self.local_steps, self.local_epochs)
        real("mixture_lr", self.mixture_lr, zero=True, scope="afl")

    def begin(self, start: Stack) -> tuple[Kept, None]:
        """One model and a uniform mixture."""
        w = start.mean(0, keepdim=True)
        return (
            w,
            start.new_full((len(start), 1), 1 / len(start)),
            torch.zeros_like(w),
            w.new_zeros(()),
        ), None

    def send(self, server: Kept, ids: Ids) -> Stack:
        """The model."""
        return server[0].expand(len(ids), -1)

    def local(
        self, private: None, told: Stack, task: Task
    ) -> tuple[None, tuple[Stack, Float[Tensor, "client 1"]]]:
        """R mini-batch steps; the change of the model, and the loss of the one that was told, are sent."""
        loss = task.loss(told)
        w = told.clone()
        w = task.descended(w, self.lr)
        return private, (w - told, loss)

    def merge(self, server: Kept, ids: Ids, ups: tuple[Stack, Float[Tensor, "client 1"]]) -> Kept:
        """A step of the model down, weighted by the mixture, and of the mixture up."""
        w, mixture, total, rounds = server
        moved, loss = ups
        scale = len(mixture) / len(ids)
        w = w + scale * (mixture[ids] * moved).sum(0, keepdim=True)
        mixture = on_simplex(mixture.index_add(0, ids, loss, alpha=self.mixture_lr * scale))
        return w, mixture, total + w, rounds + 1

    def personal(self, server: Kept, private: None, clients: int) -> Stack:
        """The mean of the models of all rounds, at every client."""
        _, _, total, rounds = server
        return (total / rounds).expand(clients, -1)


def on_simplex(v: Mixture) -> Mixture:
    """The nearest point with non-negative entries that sum to one (Duchi et al., ICML 2008)."""
    falling = v.flatten().sort(descending=True).values
    excess = (falling.cumsum(0) - 1) / torch.arange(1, len(v) + 1, device=v.device)
    last = ((falling > excess).sum(0, keepdim=True) - 1).clamp_min(0)  # none is, where training has diverged
    return (v - excess.gather(0, last)).clamp_min(0)
