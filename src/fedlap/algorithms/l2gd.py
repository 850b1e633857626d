"""L2GD: one model per client, with random rounds that step towards the mean of all models."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from fedlap.algorithms.interface import Traits, check_idle_probability, check_local_work
from fedlap.algorithms.local_updates import sgd
from fedlap.algorithms.local_work import LocalWork
from fedlap.algorithms.server_state import GlobalModel, Ids
from fedlap.algorithms.task import Task
from fedlap.errors import InputError, check_integer, check_number
from fedlap.models.model import Stack
from fedlap.randomness import draws


class L2GDServer(NamedTuple):
    """The mean of the models that clients uploaded last, and the number of rounds so far."""

    mean: GlobalModel
    rounds: Int64[Tensor, ""]


class L2GDBroadcast(NamedTuple):
    """The mean in an averaging round, else None; the coins of this round and the next."""

    mean: Stack | None
    coins: Bool[Tensor, "client 2"]


@dataclass(frozen=True)
class L2GD:
    """L2GD (Hanzely and Richtárik 2020, Algorithm 1): local rounds, and averaging rounds at random.

    min_W Σ_k F_k(w_k) + (λ/2) Σ_k ‖w_k − w̄‖²               the problem, N times the paper's objective
    w_k ← w_k − μ ∇F̃_k(w_k)                                 R times, in a round whose coin shows 0
    w_k ← w_k − γ (w_k − w̄)                                 in a round whose coin shows 1, with chance p

    One coin is tossed for all clients. In the paper R = 1 (set local_steps = 1), μ = α/(N(1 − p)) and
    γ = αλ/(Np), so that γ = μ(1 − p)λ/p. Here γ = μR(1 − p)λ/p, so that R does not change the balance between
    both terms. γ = 1 replaces every model by the mean; the paper's theorem is for γ ≤ 1/2; γ > 2 is rejected,
    since averaging alone would diverge.

    Models stay with the clients. Clients upload them at the end of a local round that an averaging round
    follows; the server sends the mean in an averaging round. Averaging does not change the mean, so that
    further averaging rounds need no upload. In all other rounds only the coins cross the wire. If clients are
    sampled, w̄ is the mean over those sampled in the last local round, and those sampled in the averaging
    round step towards it.

    strength: λ, of the pull to the mean (0.1, not from the paper). The problem is that of FedU on the
        complete graph with η = λ/N.
    probability: p, of an averaging round (0.1, not from the paper, whose optimum is λ/(λ + L), with L the
        largest curvature of F_k).
    coin_seed: seed of the coins; they do not depend on the seed of training.
    lr: μ, the length of a local step; 0.03 as for every method here.
    local_steps: R mini-batch steps in a local round (5 if neither is given; 1 in the paper), or …
    local_epochs: … R passes over the client's rows.
    """

    strength: float = 0.1
    probability: float = 0.1
    coin_seed: int = 0
    lr: float = 0.03
    local_steps: int | None = None
    local_epochs: int | None = None

    traits: ClassVar[Traits] = Traits("multi-task")
    citation: ClassVar[str] = (
        "F. Hanzely and P. Richtárik. Federated Learning of a Mixture of Global and Local Models. "
        "arXiv:2002.05516, 2020."
    )

    def __post_init__(self) -> None:
        check_local_work("l2gd", self.lr, self.local_steps, self.local_epochs)
        check_number("strength", self.strength, zero=True, scope="l2gd")
        check_integer("coin_seed", self.coin_seed, scope="l2gd")
        check_idle_probability("probability", self.probability, zero=False, scope="l2gd")
        if self.step > 2 * (1 + 1e-12):
            raise InputError(
                f"strength = {self.strength:g} is too large: lr·R·(1 − p)·strength/p = {self.step:.4g} "
                f"> 2, with p = {self.probability:g} the probability, so averaging would diverge; use a "
                f"strength of at most {2 * self.strength / self.step:.4g}",
                field="strength",
                scope="l2gd",
            )

    @property
    def step(self) -> float:
        """γ, the length of a step towards the mean."""
        repeats = LocalWork.of(self.local_steps, self.local_epochs).repeats
        return self.lr * repeats * (1 - self.probability) * self.strength / self.probability

    def is_averaging_round(self, round: int) -> bool:
        """Return the coin of a round."""
        return bool(draws(self.coin_seed, "coin", round).uniform(0, 0, 1) < self.probability)

    def init_server(self, start: Stack) -> L2GDServer:
        """Store the mean of the clients' start models."""
        return L2GDServer(start.mean(0, keepdim=True), torch.tensor(0))

    def init_clients(self, start: Stack, counts: Tensor) -> Stack:
        """Store each client's model."""
        return start.clone()

    def send(self, server: L2GDServer, ids: Ids) -> L2GDBroadcast:
        """Send the coins of this round and the next, and the mean in an averaging round."""
        w, round = server.mean, int(server.rounds) + 1
        coins = self.is_averaging_round(round), self.is_averaging_round(round + 1)
        mean = w.expand(len(ids), -1) if coins[0] else None
        return L2GDBroadcast(mean, torch.tensor(coins, device=w.device).expand(len(ids), -1))

    def local(self, w: Stack, received: L2GDBroadcast, task: Task) -> tuple[Stack, Stack | None]:
        """Step towards the mean, or run R mini-batch steps and send the model if averaging follows."""
        mean, coins = received
        if mean is not None:
            return w - self.step * (w - mean), None
        w = task.run(sgd, w, lr=self.lr)
        return w, w if bool(coins[0, 1]) else None

    def merge(self, server: L2GDServer, ids: Ids, w: Stack | None) -> L2GDServer:
        """Average the uploaded models, if there are any."""
        mean = server.mean if w is None else w.mean(0, keepdim=True)
        return L2GDServer(mean, server.rounds + 1)

    def penalty(self, server: L2GDServer, w: Stack) -> Float[Tensor, ""]:
        """Return (λ/2) Σ_k ‖w_k − w̄‖²."""
        return self.strength / 2 * (w.double() - w.double().mean(0)).square().sum()

    def personal_models(self, server: L2GDServer, w: Stack, clients: int) -> Stack:
        """Return each client's model."""
        return w
