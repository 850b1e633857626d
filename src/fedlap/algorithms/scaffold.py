"""SCAFFOLD: a global model, with control variates that correct the drift of local steps."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fedlap.algorithms.adaptation import check_fine_tuning
from fedlap.algorithms.interface import Traits, check_local_work
from fedlap.algorithms.local_updates import sgd
from fedlap.algorithms.server_state import GlobalModel, Ids
from fedlap.algorithms.task import Task
from fedlap.errors import check_number
from fedlap.models.model import Stack


class ScaffoldServer(NamedTuple):
    """The global model, the server's control variate and the number of clients."""

    model: GlobalModel
    control: GlobalModel
    clients: Float[Tensor, ""]


class ScaffoldMessage(NamedTuple):
    """A model and a control variate, down; their changes, up."""

    model: Stack
    control: Stack


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
    fine_tune_steps: full gradient steps of length μ that each client takes on its training rows, from the
        global model, before it is scored; they change neither training nor the wire.
    """

    server_lr: float = 1.0
    lr: float = 0.03
    local_steps: int | None = None
    local_epochs: int | None = None
    fine_tune_steps: int | None = None

    traits: ClassVar[Traits] = Traits("one model", static="round")
    citation: ClassVar[str] = (
        "S. P. Karimireddy, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich and A. T. Suresh. SCAFFOLD: "
        "Stochastic Controlled Averaging for Federated Learning. ICML, 2020."
    )

    def __post_init__(self) -> None:
        check_local_work("scaffold", self.lr, self.local_steps, self.local_epochs)
        check_fine_tuning("scaffold", self.fine_tune_steps)
        check_number("server_lr", self.server_lr, zero=False, scope="scaffold")

    def init_server(self, start: Stack) -> ScaffoldServer:
        """Start at the mean of the clients' start models, with a control variate of zero."""
        w = start.mean(0, keepdim=True)
        return ScaffoldServer(w, torch.zeros_like(w), start.new_tensor(float(len(start))))

    def init_clients(self, start: Stack, counts: Tensor) -> Stack:
        """Start every client's control variate at zero."""
        return torch.zeros_like(start)

    def send(self, server: ScaffoldServer, ids: Ids) -> ScaffoldMessage:
        """Send the global model and the server's control variate."""
        return ScaffoldMessage(server.model.expand(len(ids), -1), server.control.expand(len(ids), -1))

    def local(self, control: Stack, received: ScaffoldMessage, task: Task) -> tuple[Stack, ScaffoldMessage]:
        """Run corrected steps; send the changes of the model and of the client's control variate."""
        start, c = received
        w = task.run(sgd, start, lr=self.lr, shift=self.lr * (c - control))
        new = control - c + (start - w) / (task.steps * self.lr)
        return new, ScaffoldMessage(w - start, new - control)

    def merge(self, server: ScaffoldServer, ids: Ids, up: ScaffoldMessage) -> ScaffoldServer:
        """Step along the mean change; the control variate moves by the sampled clients' changes over N."""
        return ScaffoldServer(
            server.model + self.server_lr * up.model.mean(0, keepdim=True),
            server.control + up.control.sum(0, keepdim=True) / server.clients,
            server.clients,
        )

    def personal_models(self, server: ScaffoldServer, control: Stack, clients: int) -> Stack:
        """Return the global model for every client."""
        return server.model.expand(clients, -1)
