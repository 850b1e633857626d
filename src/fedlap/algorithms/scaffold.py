"""SCAFFOLD: a global model, with control variates that correct the drift of local steps."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from fedlap.algorithms.interface import GlobalModel, Ids, Kind, Steadiness, check_local_work
from fedlap.algorithms.task import Task
from fedlap.errors import check_number
from fedlap.models.model import Stack

ScaffoldServer = tuple[GlobalModel, GlobalModel, Float[Tensor, ""]]  # w, c and the number of clients


@dataclass(frozen=True)
class Scaffold:
    """SCAFFOLD (Karimireddy et al. 2020, Algorithm 1, option II): local steps corrected by control variates.

    w_k ← w                                                  at each sampled client k, which receives w and c
    w_k ← w_k − μ (∇F̃_k(w_k) − c_k + c)                     R_k times, the client's true number of steps
    c_k⁺ ← c_k − c + (w − w_k) / (R_k μ)
    w ← w + γ/S Σ_k (w_k − w),  c ← c + 1/N Σ_k (c_k⁺ − c_k)   at the server, over the S sampled of N clients

    Control variates start at zero; c stays the mean of all c_k.

    server_lr: γ, the global step size (1 in the paper's experiments).
    lr: μ, the length of a local step; 0.03 as for every method here.
    local_steps: R mini-batch steps per round (5 if neither is given), or …
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
        check_local_work("scaffold", self.lr, self.local_steps, self.local_epochs)
        check_number("server_lr", self.server_lr, zero=False, scope="scaffold")

    def init(self, start: Stack) -> tuple[ScaffoldServer, Stack]:
        """Store w, c and the number of clients at the server, and c_k as private state."""
        w = start.mean(0, keepdim=True)
        return (w, torch.zeros_like(w), start.new_tensor(float(len(start)))), torch.zeros_like(start)

    def send(self, server: ScaffoldServer, ids: Ids) -> tuple[Stack, Stack]:
        """Send the global model and the server's control variate."""
        w, c, _ = server
        return w.expand(len(ids), -1), c.expand(len(ids), -1)

    def local(
        self, control: Stack, received: tuple[Stack, Stack], task: Task
    ) -> tuple[Stack, tuple[Stack, Stack]]:
        """Run corrected steps; send the changes of the model and of the client's control variate."""
        start, c = received
        w = start.clone()
        for batch in task.batches():
            active = len(batch.x)
            w = task.step(w, batch, self.lr)
            w[:active] -= self.lr * (c - control)[:active]
        new = control - c + (start - w) / (task.steps * self.lr)
        return new, (w - start, new - control)

    def merge(self, server: ScaffoldServer, ids: Ids, ups: tuple[Stack, Stack]) -> ScaffoldServer:
        """Step along the mean change; the control variate moves by the sampled clients' changes over N."""
        w, c, clients = server
        model_change, control_change = ups
        return (
            w + self.server_lr * model_change.mean(0, keepdim=True),
            c + control_change.sum(0, keepdim=True) / clients,
            clients,
        )

    def personal_models(self, server: ScaffoldServer, control: Stack, clients: int) -> Stack:
        """Return the global model for every client."""
        return server[0].expand(clients, -1)
