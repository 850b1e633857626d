"""SCAFFOLD: one model, with controls that take out what is peculiar to each client's gradients."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from fedlap.algorithms.interface import Ids, Kind, One, Steadiness, check_work
from fedlap.algorithms.task import Stack, Task
from fedlap.errors import real

Kept = tuple[One, One, Float[Tensor, ""]]  # w, c and the number of clients


@dataclass(frozen=True)
class Scaffold:
    """SCAFFOLD (Karimireddy et al. 2020, Algorithm 1, option II): local steps corrected by controls.

    w_k ← w                                                  at each sampled client k, told w and c
    w_k ← w_k − μ (∇F̃_k(w_k) − c_k + c)                     R_k times, the client's true number of steps
    c_k⁺ ← c_k − c + (w − w_k) / (R_k μ)
    w ← w + γ/S Σ_k (w_k − w),  c ← c + 1/N Σ_k (c_k⁺ − c_k)   at the server, over the S sampled of N clients

    Controls start at zero; c stays the mean of all c_k.

    server_lr: γ, the global step size (1 in the paper's experiments).
    lr: μ, the length of a local step; 0.03 as for every method here.
    local_steps: R mini-batch steps a round (5 where neither is given), or …
    local_epochs: … R passes over the client's rows (1 to 20 in the paper).
    """

    server_lr: float = 1.0
    lr: float = 0.03
    local_steps: int | None = None
    local_epochs: int | None = None

    kind: ClassVar[Kind] = "one model"
    steady: ClassVar[Steadiness] = "round"
    citation: ClassVar[str] = (
        "S. P. Karimireddy, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich and A. T. Suresh. SCAFFOLD: "
        "Stochastic Controlled Averaging for Federated Learning. ICML, 2020."
    )

    def __post_init__(self) -> None:
        check_work("scaffold", self.lr, self.local_steps, self.local_epochs)
        real("server_lr", self.server_lr, zero=False, scope="scaffold")

    def begin(self, start: Stack) -> tuple[Kept, Stack]:
        """The server keeps w, c and the number of clients; each client keeps c_k."""
        w = start.mean(0, keepdim=True)
        return (w, torch.zeros_like(w), start.new_tensor(float(len(start)))), torch.zeros_like(start)

    def send(self, server: Kept, ids: Ids) -> tuple[Stack, Stack]:
        """The model and the server's control."""
        w, c, _ = server
        return w.expand(len(ids), -1), c.expand(len(ids), -1)

    def local(self, own: Stack, told: tuple[Stack, Stack], task: Task) -> tuple[Stack, tuple[Stack, Stack]]:
        """Corrected steps; the changes of the model and of the client's control are sent."""
        start, c = told
        w = start.clone()
        for batch in task.batches():
            active = len(batch.x)
            w = task.descend(w, batch, self.lr)
            w[:active] -= self.lr * (c - own)[:active]
        new = own - c + (start - w) / (task.steps * self.lr)
        return new, (w - start, new - own)

    def merge(self, server: Kept, ids: Ids, ups: tuple[Stack, Stack]) -> Kept:
        """A step along the mean change; the control moves by the sampled clients' share of all."""
        w, c, clients = server
        moved, changed = ups
        return (
            w + self.server_lr * moved.mean(0, keepdim=True),
            c + changed.sum(0, keepdim=True) / clients,
            clients,
        )

    def personal(self, server: Kept, own: Stack, clients: int) -> Stack:
        """The one model, at every client."""
        return server[0].expand(clients, -1)
