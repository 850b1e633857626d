"""L2GD: each client its own model, now and then a step towards the mean of all."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from fedlap.algorithms.interface import Ids, Kind, One, check_work
from fedlap.algorithms.local_work import LocalWork
from fedlap.algorithms.task import Stack, Task
from fedlap.errors import InputError, real, whole
from fedlap.randomness import draws

Kept = tuple[One, Int64[Tensor, ""]]  # the mean, and the number of rounds so far
Told = tuple[Stack | None, Bool[Tensor, "client 2"]]  # the mean or nothing; this round's and the next coin


@dataclass(frozen=True)
class L2GD:
    """L2GD (Hanzely and Richtárik 2020, Algorithm 1): in each round all work alone, or all near the mean.

    min_W Σ_k F_k(w_k) + (λ/2) Σ_k ‖w_k − w̄‖²               the problem, N times as the paper has it
    w_k ← w_k − μ ∇F̃_k(w_k)                                 R times, in a round whose coin shows 0
    w_k ← w_k − γ (w_k − w̄)                                 in a round whose coin shows 1, with chance p

    One coin is tossed for all clients. In the paper R = 1 (take local_steps = 1), μ = α/(N(1 − p)) and
    γ = αλ/(Np), so that γ = μ(1 − p)λ/p. Here γ = μR(1 − p)λ/p, and R local steps leave the balance between
    both terms as it is. γ = 1 makes all models the mean; the paper's theorem is for γ ≤ 1/2; γ > 2 is
    refused, since averaging alone would diverge.

    Models stay with the clients. They are sent up at the end of a local round that averaging follows, and
    the mean comes down in an averaging round, which does not change it: the next such round needs no new one.
    In all other rounds the coins alone cross the wire. Where clients are sampled, w̄ is the mean over those
    sampled in the last local round, and those sampled in the averaging round step towards it.

    strength: λ, how much models should be alike (0.1, not from the paper). The problem is that of FedU on the
        complete graph with η = λ/N.
    probability: p, the chance of an averaging round (0.1, not from the paper, whose best is λ/(λ + L), with L
        the largest curvature of F_k).
    coin_seed: of the coins; they are the same for every seed of training.
    lr: μ, the length of a local step; 0.03 as for every method here.
    local_steps: R mini-batch steps in a local round (5 where neither is given; 1 in the paper), or …
    local_epochs: … R passes over the client's rows.
    """

    strength: float = 0.1
    probability: float = 0.1
    coin_seed: int = 0
    lr: float = 0.03
    local_steps: int | None = None
    local_epochs: int | None = None

    kind: ClassVar[Kind] = "multi-task"
    citation: ClassVar[str] = (
        "F. Hanzely and P. Richtárik. Federated Learning of a Mixture of Global and Local Models. "
        "arXiv:2002.05516, 2020."
    )

    def __post_init__(self) -> None:
        check_work("l2gd", self.lr, self.local_steps, self.local_epochs)
        real("strength", self.strength, zero=True, scope="l2gd")
        whole("coin_seed", self.coin_seed, scope="l2gd")
        if real("probability", self.probability, zero=False, scope="l2gd") >= 1:
            raise InputError(
                f"probability = {self.probability:g}; at 1 nobody would train; take less",
                field="probability",
                scope="l2gd",
            )
        if self.step > 2 * (1 + 1e-12):
            raise InputError(
                f"strength = {self.strength:g} is too large: lr·R·(1 − p)·strength/p = {self.step:.4g} "
                f"> 2, with p = {self.probability:g} the probability, and averaging would diverge; take a "
                f"strength of at most {2 * self.strength / self.step:.4g}",
                field="strength",
                scope="l2gd",
            )

    @property
    def step(self) -> float:
        """γ, how far models go towards the mean."""
        repeats = LocalWork.of(self.local_steps, self.local_epochs).repeats
        return self.lr * repeats * (1 - self.probability) * self.strength / self.probability

    def averages(self, round: int) -> bool:
        """The coin of this round."""
        return bool(draws(self.coin_seed, "coin", round).uniform(0, 0, 1) < self.probability)

    def begin(self, start: Stack) -> tuple[Kept, Stack]:
        """The server keeps the mean and counts rounds; each client keeps its own model."""
        return (start.mean(0, keepdim=True), torch.tensor(0)), start.clone()

    def send(self, server: Kept, ids: Ids) -> Told:
        """The coins of this round and the next, and the mean where this one averages."""
        w, done = server
        coins = self.averages(int(done) + 1), self.averages(int(done) + 2)
        mean = w.expand(len(ids), -1) if coins[0] else None
        return mean, torch.tensor(coins, device=w.device).expand(len(ids), -1)

    def local(self, w: Stack, told: Told, task: Task) -> tuple[Stack, Stack | None]:
        """A step towards the mean, or R mini-batch steps; then the model is sent where averaging follows."""
        mean, coins = told
        if mean is not None:
            return w - self.step * (w - mean), None
        w = task.descended(w, self.lr)
        return w, w if bool(coins[0, 1]) else None

    def merge(self, server: Kept, ids: Ids, ups: Stack | None) -> Kept:
        """The mean of what was sent."""
        w, done = server
        return w if ups is None else ups.mean(0, keepdim=True), done + 1

    def penalty(self, server: Kept, w: Stack) -> Float[Tensor, ""]:
        """(λ/2) Σ_k ‖w_k − w̄‖²."""
        return self.strength / 2 * (w.double() - w.double().mean(0)).square().sum()

    def personal(self, server: Kept, w: Stack, clients: int) -> Stack:
        """Each client's own model."""
        return w
